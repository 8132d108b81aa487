"""What a model may be given: refused where there is something to look at; inside transforms, what comes of it is NaN.

Axes: B batch, T positions or frames, C channels or mel bins; H and W of an image.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flax_transformer.hub.call import all_alike, count_ends
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import EMBEDDED, Inputs
from flax_transformer.nn.check import check_embeddings
from flax_transformer.ops.mask_field import check_broadcast

WORDS = {"token_type_ids": "token types", "position_ids": "positions"}


def check_key(key: Any) -> None:
    """Refuse what is no key of JAX's random numbers, such as a seed.

    Raises:
      ValueError: says how a key is made.
    """
    if key is None or (
        hasattr(key, "dtype")
        and (jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or (key.ndim and key.dtype == "uint32"))
    ):
        return
    seed = key if isinstance(key, int) else 0
    raise ValueError(f"key must be one of JAX, as jax.random.key({seed}), got {key!r:.60}")


def check_ids(name: str, ids: Any, rows: Mapping[str, int]) -> None:
    """Refuse ids that are no numbers of rows: a lookup would give NaN, or another row, and 64 bits would be cut to 32.

    Ids that are on a device are waited for; of tracers only the type is seen.

    Args:
      rows: how many there are, by name of the input; without a table any whole number will do.

    Raises:
      ValueError: says which.
    """
    words = WORDS.get(name, "token ids")
    kind = np.asarray(ids).dtype if isinstance(ids, list | tuple) else ids.dtype
    if not jnp.issubdtype(jnp.dtype(str(kind).removeprefix("torch.")), jnp.integer):
        raise ValueError(f"{words} must be whole numbers, {name} is {kind}")
    if not _readable(ids):
        return
    known = np.asarray(ids)
    if not known.size:
        raise ValueError(f"a model is given at least one row of at least one token, {name} is of shape {known.shape}")
    low, high = (0, rows[name]) if name in rows else (-(2**31), 2**31)
    worst = int(known.min()) if known.min() < low else int(known.max())
    if not low <= worst < high:
        raise ValueError(f"{words} must be in [{low}, {high}), {name} has {worst}")


def check_embedded(embeddings: Any, model: Any) -> None:
    """Refuse embeddings in the place of ids that are no floats [*B, T, D] of the table's width.

    Raises:
      ValueError: says what they are.
    """
    table = getattr(model.cfg, "source_embedding", None) or model.cfg.embedding
    check_embeddings(embeddings, table.embed, EMBEDDED)
    if 0 in embeddings.shape:
        raise ValueError(f"a model is given at least one row of at least one token, {EMBEDDED} has {embeddings.shape}")


def check_shapes(inputs: Inputs) -> None:
    """Refuse inputs that are not of the shape of the tokens they are about.

    Raises:
      ValueError: says which.
    """
    for ids, others in (
        (inputs.tokens, ("attention_mask", "token_type_ids", "position_ids")),
        (inputs.decoder_input_ids, ("decoder_attention_mask",)),
    ):
        for name in others:
            if ids is not None and (value := getattr(inputs, name)) is not None:
                shape = ids.shape if jnp.issubdtype(ids.dtype, jnp.integer) else ids.shape[:-1]
                check_broadcast(name, value.shape, shape)


def check_pixels(inputs: Inputs, fields: Fields, *, several: bool = False) -> None:
    """Refuse images that are no numbers [B, C, H, W] of the model's channels, and a mask of another shape.

    Args:
      several: whether they are several of each text, [B, I, C, H, W].

    Raises:
      ValueError: says which.
    """
    if (pixels := inputs.pixel_values) is None:
        return
    if inputs.spatial_shapes is not None:
        return check_patches(inputs)
    if inputs.image_grid_thw is not None:
        return check_packed(inputs)
    most = None if several else fields.frames
    several = several or (pixels.ndim == 5 and 0 < pixels.shape[1] <= (most or 0))
    axes, rows = (5, "B, I") if several else (4, "B")
    channels = fields.channels or (pixels.shape[-3] if pixels.ndim == axes else "C")
    if pixels.ndim != axes or pixels.shape[-3] != channels or 0 in pixels.shape:
        more = "" if most is None else f", or [B, I, {channels}, H, W] with I up to {most}"
        raise ValueError(
            f"pixel_values must be [{rows}, {channels}, H, W]{more}, channels before rows, got {list(pixels.shape)}"
        )
    if not jnp.issubdtype(pixels.dtype, jnp.floating):
        raise ValueError(f"pixel_values must be what a processor makes of images, floats, got {pixels.dtype}")
    mask, shape = inputs.pixel_mask, (*pixels.shape[:-3], *pixels.shape[-2:])
    if mask is not None and mask.shape != shape:
        raise ValueError(f"pixel_mask must be [{rows}, H, W] of its images, {list(shape)}, got {list(mask.shape)}")


def check_patches(inputs: Inputs) -> None:
    """Refuse patches that are no numbers [B, P, F], or shapes and a mask of other images.

    Raises:
      ValueError: says which.
    """
    pixels = inputs.pixel_values
    if pixels.ndim != 3 or 0 in pixels.shape:
        raise ValueError(f"pixel_values must be patches [B, P, F] beside spatial_shapes, got {list(pixels.shape)}")
    if not jnp.issubdtype(pixels.dtype, jnp.floating):
        raise ValueError(f"pixel_values must be what a processor makes of images, floats, got {pixels.dtype}")
    for name, shape in (("spatial_shapes", (pixels.shape[0], 2)), ("pixel_attention_mask", pixels.shape[:2])):
        if (value := getattr(inputs, name)) is not None and value.shape != shape:
            raise ValueError(f"{name} must be of the images, {list(shape)}, got {list(value.shape)}")


def check_packed(inputs: Inputs) -> None:
    """Refuse patches that are no numbers [B, P, F], or grids that are not of the images of as many rows.

    Raises:
      ValueError: says which.
    """
    pixels, grids = inputs.pixel_values, inputs.image_grid_thw
    if pixels.ndim != 3 or 0 in pixels.shape or not jnp.issubdtype(pixels.dtype, jnp.floating):
        raise ValueError(
            "pixel_values must be patches, floats [B, P, F] beside image_grid_thw, got "
            f"{pixels.dtype} {list(pixels.shape)}"
        )
    if grids.ndim != 3 or grids.shape[::2] != (pixels.shape[0], 3):
        raise ValueError(f"image_grid_thw must be [B, I, 3] of B={pixels.shape[0]} rows, got {list(grids.shape)}")


def check_frames(inputs: Inputs, fields: Fields) -> None:
    """Refuse log-mel frames that are no numbers [B, C, T] of the model's bins, or not as many as fill its positions.

    Raises:
      ValueError: says which.
    """
    frames, bins = inputs.input_features, fields.integer("num_mel_bins", 80)
    full = 2 * fields.integer("max_source_positions", 1500)
    if frames.ndim != 3 or frames.shape[1:] != (bins, full) or not frames.shape[0]:
        raise ValueError(
            f"input_features must be [B, {bins}, {full}], bins before frames, as many frames as fill the positions; "
            f"got {list(frames.shape)}"
        )
    if not jnp.issubdtype(frames.dtype, jnp.floating):
        raise ValueError(f"input_features must be what a processor makes of recordings, floats, got {frames.dtype}")


def check_samples(inputs: Inputs, fields: Fields) -> None:
    """Refuse samples that are no numbers [B, T], and a mask of another shape.

    Raises:
      ValueError: says which.
    """
    samples, mask = inputs.input_values, inputs.attention_mask
    if samples.ndim != 2 or 0 in samples.shape or not jnp.issubdtype(samples.dtype, jnp.floating):
        raise ValueError(f"input_values must be samples, floats [B, T], got {samples.dtype} {list(samples.shape)}")
    if mask is not None and mask.shape != samples.shape:
        raise ValueError(
            f"attention_mask must be [B, T] of the samples, got {list(mask.shape)} and {list(samples.shape)}"
        )


def check_contrast(inputs: Inputs, fields: Fields) -> None:
    """Refuse samples as `check_samples`, and others to tell positions from without the positions that are masked.

    Raises:
      ValueError: says which.
    """
    check_samples(inputs, fields)
    masked, others = inputs.mask_time_indices, inputs.sampled_negative_indices
    if others is not None and (masked is None or others.shape[:-1] != masked.shape):
        found = None if masked is None else list(masked.shape)
        raise ValueError(
            f"sampled_negative_indices must be [B, S, N] beside mask_time_indices [B, S], got {list(others.shape)} and "
            f"{found}"
        )


def poisoned(inputs: Inputs, rows: Mapping[str, int]) -> Inputs:
    """Put a token that no table has where any id of a position is out of range, so that its row becomes NaN."""

    tables = {"input_ids": ("input_ids", "token_type_ids", "position_ids"), "decoder_input_ids": ("decoder_input_ids",)}
    for name, about in tables.items():
        for each in about:
            if each in rows and (ids := getattr(inputs, each)) is not None:
                wrong = (ids < 0) | (ids >= rows[each])
                if (found := getattr(inputs, name)) is not None:
                    inputs = replace(inputs, **{name: jnp.where(wrong, rows[name], found)})
                elif inputs.inputs_embeds is not None:
                    inputs = replace(inputs, inputs_embeds=jnp.where(wrong[..., None], jnp.nan, inputs.inputs_embeds))
    return inputs


def check_ends(inputs: Inputs, fields: Fields) -> None:
    """Refuse rows to classify by their last end token that have none, or not as many as the others.

    Raises:
      ValueError: says how many they have.
    """
    if _readable(inputs.input_ids) and not all_alike(found := count_ends(inputs, fields)):
        raise ValueError(
            f"rows to classify must have an end token, all as many, got eos_token_id={fields['eos_token_id']} "
            f"{sorted(set(np.ravel(found).tolist()))} times"
        )


def _readable(ids: Any) -> bool:
    return not isinstance(ids, jax.core.Tracer) and getattr(ids, "is_fully_addressable", True)
