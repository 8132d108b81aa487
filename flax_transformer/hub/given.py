"""What somebody gives to generate from, checked.

Axes: B rows, P prompt tokens, S positions of states, D width.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flax_transformer.hub.call import images_of
from flax_transformer.hub.check import check_embedded, check_pixels
from flax_transformer.hub.inputs import EMBEDDED, Inputs

OTHERS = "image_grid_thw", "mm_token_type_ids", "encoder_hidden_states", "encoder_attention_mask"
"""What may stand beside tokens or images, by Hugging Face's names."""


class Given(NamedTuple):
    """What somebody gives."""

    input_ids: Any = None
    attention_mask: Any = None
    pixel_values: Any = None
    global_attention_mask: Any = None
    inputs_embeds: Any = None
    others: Mapping[str, Any] = MappingProxyType({})
    """Those of `OTHERS`, by name."""

    def check(self, pretrained: Any) -> None:
        """Refuse what is not for every model that generates, and embeddings beside tokens.

        Raises:
          ValueError: says what the model is given.
        """
        known, name = pretrained.architecture.inputs, name_of(pretrained)
        if self.global_attention_mask is not None:
            known.check(name, ("input_ids", "global_attention_mask"))
        if self.inputs_embeds is not None:
            known.check(name, (EMBEDDED, *(() if self.input_ids is None else ("input_ids",))))
        if self.others:
            known.check(name, (*known.needs, *self.others))


def name_of(pretrained: Any) -> str:
    """Name the class of a checkpoint."""
    return pretrained.config["architectures"][0]


def is_embedded(tokens: Any) -> bool:
    """Return whether these are embeddings in the place of tokens."""
    return hasattr(tokens, "dtype") and jnp.issubdtype(tokens.dtype, jnp.floating)


def read_embedded(pretrained: Any, given: Given) -> tuple[Any, Any]:
    """Return embeddings in the place of tokens, [B, P, D], and the mask, on the host where they are known.

    Raises:
      ValueError: what are none.
    """
    embeddings = given.inputs_embeds
    check_embedded(embeddings, pretrained.model)
    if embeddings.ndim != 3:
        raise ValueError(f"{EMBEDDED} to generate from must be [B, P, D], got {embeddings.shape}")
    on = jnp if is_placed(embeddings) or isinstance(given.attention_mask, jax.core.Tracer) else np
    return on.asarray(embeddings), read_mask(given.attention_mask, embeddings.shape[:2], EMBEDDED, on)


def is_placed(array: Any) -> bool:
    """Return whether an array stays where it is: inside a transform, or on several devices."""
    return isinstance(array, jax.core.Tracer) or (isinstance(array, jax.Array) and len(array.sharding.device_set) > 1)


def read_mask(mask: Any, shape: tuple[int, ...], name: str, on: Any, *, called: str = "attention_mask") -> Any:
    """Return a mask as whole numbers, 0 and 1, or None where none is given.

    Args:
      shape, name: of what it is about.
      on: where it is to be, numpy or jax.numpy.
      called: its own name.

    Raises:
      ValueError: one of another shape.
    """
    if mask is None:
        return None
    mask = on.asarray(mask)
    if mask.shape != shape:
        raise ValueError(f"{called} must have the shape of {name}, got {mask.shape} and {shape}")
    return (mask != 0).astype(on.int32)


def read_tokens(pretrained: Any, given: Given, *, pad: int | None = None) -> tuple[Any, Any]:
    """Return ids and mask, on the host where they are known: so nothing but the loop is compiled.

    Args:
      pad: the token that is padding where no mask is given, as Hugging Face infers it.
    """
    input_ids, attention_mask = given.input_ids, given.attention_mask
    if input_ids is None:
        raise ValueError(f"a {name_of(pretrained)} goes by input_ids, got none")
    if isinstance(input_ids, str) or (
        isinstance(input_ids, list | tuple) and any(isinstance(x, str) for x in input_ids)
    ):
        raise ValueError(f"prompts are token ids: generate(**pretrained.tokenizer({input_ids!r:.60})), got texts")
    on = jnp if is_placed(input_ids) or isinstance(attention_mask, jax.core.Tracer) else np
    ids = on.asarray(input_ids)
    if ids.ndim != 2 or 0 in ids.shape or ids.dtype.kind not in "iu":
        raise ValueError(
            "prompts are one or more rows of at least one token, whole numbers [B, P], got an array of shape "
            f"{ids.shape} and type {ids.dtype}"
        )
    pretrained.check_ids("input_ids", ids)
    mask = ids != pad if attention_mask is None and pad is not None else attention_mask
    return ids, read_mask(mask, ids.shape, "input_ids", on)


def read_images(pretrained: Any, given: Given) -> Any:
    """Return images with channels last."""
    if given.pixel_values is None:
        raise ValueError(f"a {name_of(pretrained)} goes by pixel_values, got none")
    inputs = Inputs(pixel_values=jnp.asarray(given.pixel_values))
    check_pixels(inputs, pretrained.config)
    return images_of(inputs)
