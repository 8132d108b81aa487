"""Hidden states of rows that are filled up with padding, for heads that look at all positions.

Axes: B batch, T positions, D width.
"""

import inspect
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flax_transformer.ops import Mask
from flax_transformer.ops.routing import real_positions

POOLED = (
    "last", "mean", "first and mean", "weighted", "attention", "max", "sum over root length", "mean by position",
)  # fmt: skip
"""What a head's `pool` says where padding, if there is some, would change what it gives."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Padded:
    """Hidden states, and which positions are not padding: what `Classifier.hidden_states` gives to a pooling head."""

    hidden: Any
    """[*B, T, D]."""
    real: Any
    """[*B, T], booleans."""


def split_padded(hidden: Any) -> tuple[Float[Array, "*B T D"], Bool[Array, "*B T"] | None]:
    """Return hidden states, and which positions are not padding; None: all are, as of an array."""
    return (hidden.hidden, hidden.real) if isinstance(hidden, Padded) else (hidden, None)


def with_padding(backbone: Any, hidden: Float[Array, "*B T D"], mask: Mask | None) -> Any:
    """Mark hidden states by what a mask of the backbone's input hides; as they are where it hides nothing."""
    mask = backbone.memory_mask(mask) if hasattr(backbone, "memory_mask") else mask
    real = real_positions(mask, hidden.shape[-2])
    return hidden if real is None else Padded(hidden, jnp.broadcast_to(real, hidden.shape[:-1]))


def padded(backbone: Any, hidden: Float[Array, "*B T D"], inputs: tuple, named: dict[str, Any]) -> Any:
    """Mark hidden states by the inputs that they were made of, as `backbone.hidden_states(*inputs, **named)`.

    A backbone whose output has other positions than its input says which of them are real as `real(**inputs)`. Of
    another `lengths` are those of its rows, as its `memory_mask` has them; what a decoder reads has none.
    """
    signature = inspect.signature(backbone.hidden_states)
    named = dict(signature.bind_partial(*inputs, **named).arguments)
    for name, parameter in signature.parameters.items():
        named |= named.pop(name, {}) if parameter.kind is parameter.VAR_KEYWORD else {}
    if hasattr(backbone, "real"):
        real = backbone.real(**{name: value for name, value in named.items() if name != "key"})
        return hidden if real is None else Padded(hidden, jnp.broadcast_to(real, hidden.shape[:-1]))
    lengths = named.get("target_lengths" if "target" in named else "lengths")
    return hidden if lengths is None else with_padding(backbone, hidden, Mask(lengths=lengths))
