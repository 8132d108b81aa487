"""How models that read images among the tokens of a text are called with Hugging Face's keyword names.

Axes: B rows, T tokens, N images of all rows and Q their patches, I images of a row and P its patches, F numbers of a
patch.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from flax_transformer.hub.call import ModelOutput, layers_of
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.generation_input import padded_length
from flax_transformer.hub.inputs import Inputs

Rows = tuple[Float[np.ndarray, "B P F"], Int[np.ndarray, "B I 3"]]


def interleaved_lm(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return logits of the token after each position, as Qwen2VLForConditionalGeneration does."""
    seen = None if inputs.attention_mask is None else inputs.attention_mask != 0
    hidden = model.encode(inputs.input_ids, inputs.pixel_values, inputs.image_grid_thw, seen=seen, key=key)
    return ModelOutput(logits=model.output(hidden).logits(), last_hidden_state=hidden)


def text_layers(seen: dict[str, list[Any]], output: ModelOutput) -> dict[str, Any]:
    """Name what the layers of the text were given, which come after those of the images."""
    return layers_of({mark: stacks[-1:] for mark, stacks in seen.items()}, output)


def in_rows(inputs: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Lay images out in the rows whose tokens they stand for, as an architecture's `prepare`.

    What is laid out already, [B, P, F] and [B, I, 3], stays: so images are given inside a transform.

    Raises:
      ValueError: patches without grids, images that are not as many as tokens stand for, videos, or images that are not
        in rows where tokens or grids are not known yet.
    """
    rest = {name: value for name, value in inputs.items() if name != "mm_token_type_ids"}
    pixels, grids = rest.get("pixel_values"), rest.get("image_grid_thw")
    if (pixels is None) != (grids is None):
        raise ValueError("an image is given as pixel_values and image_grid_thw, got one without the other")
    named = [rest["input_ids"], rest.get("attention_mask"), grids, inputs.get("mm_token_type_ids")]
    if any(isinstance(each, jax.core.Tracer) for each in named):
        if pixels is not None and jnp.ndim(grids) != 3:
            raise ValueError(
                "inside a transform images are given in rows, pixel_values [B, P, F] and image_grid_thw [B, I, 3], got "
                f"{list(jnp.shape(pixels))} and {list(jnp.shape(grids))}"
            )
        return rest
    images = _image_tokens(inputs, fields)
    if pixels is None:
        if images.any():
            raise ValueError(f"{images.sum()} tokens stand for images, got no pixel_values")
        return rest
    merge = _merge(fields)
    if np.ndim(grids) == 3:
        found = np.asarray(grids).prod(-1).sum(-1) // merge**2
        if list(found) != list(images.sum(-1)):
            raise ValueError(
                f"rows must have as many tokens for images as these have outputs, {found.tolist()}, got "
                f"{images.sum(-1).tolist()}"
            )
        return rest
    pixels, grids = laid_out(np.asarray(pixels), np.asarray(grids), images.sum(-1), merge)
    return {**rest, "pixel_values": pixels, "image_grid_thw": grids}


def laid_out(
    pixels: Float[np.ndarray, "Q F"], grids: Int[np.ndarray, "N 3"], tokens: Int[np.ndarray, "B"], merge: int
) -> Rows:
    """Lay the patches of images out in rows, filled up with zeros to one of few numbers of patches and of images.

    Args:
      tokens: how many of each row stand for outputs of images.
      merge: patches on each side of a square that is one output.

    Raises:
      ValueError: videos, images that are no squares of patches, or not as many as tokens stand for.
    """
    if grids.ndim != 2 or grids.shape[-1] != 3 or pixels.ndim != 2:
        raise ValueError(
            "images are patches [Q, F] and grids [N, 3], or both in rows, got "
            f"{list(pixels.shape)} and {list(grids.shape)}"
        )
    if (grids[:, 0] != 1).any():
        raise ValueError(f"images are read, of one time each, got a video of {grids[:, 0].max()}")
    if (grids < 1).any() or (grids[:, 1:] % merge).any():
        raise ValueError(f"rows and columns of patches must be multiples of {merge}, got {grids[:, 1:].tolist()}")
    sizes = grids.prod(-1)
    ends, wanted = np.cumsum(sizes), np.cumsum(tokens) * merge**2
    owners = np.searchsorted(wanted, ends)
    if len(pixels) != ends[-1] or list(np.bincount(owners, sizes, len(tokens))) != list(np.asarray(tokens) * merge**2):
        raise ValueError(
            f"images of {(sizes // merge**2).tolist()} outputs, {ends[-1]} patches in all, must fill the tokens that "
            f"stand for them, got {np.asarray(tokens).tolist()} in the rows and {len(pixels)} patches"
        )
    each = [np.flatnonzero(owners == row) for row in range(len(tokens))]
    step, most = merge**2, padded_length(int(tokens.max()) * merge**2)
    laid = np.zeros((len(tokens), -(-most // step) * step, pixels.shape[-1]), pixels.dtype)
    count = 1 << (max(map(len, each)) - 1).bit_length()
    found = np.zeros((len(tokens), count, 3), np.int32)
    for row, (own, begin) in enumerate(zip(each, wanted - tokens * merge**2, strict=True)):
        found[row, : len(own)] = grids[own]
        laid[row, : sizes[own].sum()] = pixels[begin : begin + sizes[own].sum()]
    return laid, found


def _image_tokens(inputs: Mapping[str, Any], fields: Fields) -> np.ndarray:
    """Return which tokens stand for images."""
    ids, mask = np.asarray(inputs["input_ids"]), inputs.get("attention_mask")
    video = fields.integer("video_token_id", 151_656)
    if (ids == video).any():
        raise ValueError(f"images are read and no videos, got the token {video}, which stands for one")
    images = ids == fields.integer("image_token_id", 151_655)
    images = images if mask is None else images & (np.asarray(mask) != 0)
    types = inputs.get("mm_token_type_ids")
    if types is not None and (np.asarray(types) != images).any():
        raise ValueError("mm_token_type_ids must be 1 where input_ids stand for an image and 0 elsewhere, got others")
    return images


def _merge(fields: Fields) -> int:
    """Read how many patches each side of a square has."""
    vision = fields.get("vision_config") or {}
    return Fields.of(vision).integer("spatial_merge_size", 2)
