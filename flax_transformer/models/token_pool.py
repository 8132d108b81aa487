"""One vector of the hidden states of a row, without parameters: of its first or last token, or of all of them.

Axes: B batch, T positions, D width.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.ops import widen
from flax_transformer.ops.routing import over_tokens


def _at(hidden: Float[Array, "*B T D"], index: Int[Array, "*B"]) -> Float[Array, "*B D"]:
    return jnp.take_along_axis(hidden, index[..., None, None], axis=-2)[..., 0, :]


def _first(hidden: Array, shown: Array, weights: Array) -> Array:
    return _at(hidden, jnp.argmax(shown, axis=-1))


def _last(hidden: Array, shown: Array, weights: Array) -> Array:
    return _at(hidden, last_shown(shown))


def _mean(hidden: Array, shown: Array, weights: Array) -> Array:
    return over_tokens(hidden, shown)


def _max(hidden: Array, shown: Array, weights: Array) -> Array:
    best = jnp.where(shown[..., None], hidden, -jnp.inf).max(-2)
    return jnp.where(shown.any(-1, keepdims=True), best, 0)


def _over_root_length(hidden: Array, shown: Array, weights: Array) -> Array:
    count = jnp.maximum(shown.sum(-1, keepdims=True), 1).astype(hidden.dtype)
    return jnp.where(shown[..., None], hidden, 0).sum(-2) / jnp.sqrt(count)


def _by_position(hidden: Array, shown: Array, weights: Array) -> Array:
    weights = jnp.where(shown, weights, 0).astype(hidden.dtype)
    total = jnp.where(shown[..., None], hidden * weights[..., None], 0).sum(-2)
    return total / jnp.maximum(weights.sum(-1, keepdims=True), 1)


TOKEN_POOLS: dict[str, Callable[..., Array]] = {
    "first": _first,
    "max": _max,
    "mean": _mean,
    "sum over root length": _over_root_length,
    "mean by position": _by_position,
    "last": _last,
}
"""How tokens become a vector. "sum over root length" divides the sum by the square root of how many there are; "mean by
position" gives the first token weight 1, the second 2, and so on (Muennighoff 2022, https://arxiv.org/abs/2202.08904)."""


def last_shown(shown: Bool[Array, "*B T"]) -> Int[Array, "*B"]:
    """Number the last position that is shown; the very last where none is."""
    return shown.shape[-1] - 1 - jnp.argmax(shown[..., ::-1], axis=-1)


def pool_tokens(
    pool: str, hidden: Float[Array, "*B T D"], real: Bool[Array, "*B T"] | None = None, *, leave_out: Any = None
) -> Float[Array, "*B D"]:
    """Pool the hidden states of the tokens that are no padding, in float32 or more; 0 of a row that has none.

    Args:
      pool: a name in `TOKEN_POOLS`.
      real: which are no padding, on either side; None: all.
      leave_out: how many tokens are not pooled, from the first real one on, those of a prompt say; they still count as
        positions.

    >>> hidden = jnp.arange(6.0).reshape(1, 3, 2)
    >>> pool_tokens("max", hidden, jnp.array([[True, True, False]]))
    Array([[2., 3.]], dtype=float32)
    """
    shown = jnp.ones(hidden.shape[:-1], bool) if real is None else jnp.broadcast_to(real, hidden.shape[:-1])
    weights = jnp.cumsum(shown, axis=-1)  # positions count no padding
    shown = shown if leave_out is None else shown & (weights > leave_out)
    return TOKEN_POOLS[pool](widen(hidden), shown, weights)
