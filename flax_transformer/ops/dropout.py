"""Dropout with cheap random bits (Srivastava et al. 2014, http://jmlr.org/papers/v15/srivastava14a.html)."""

from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

_LEVELS = 2**16


@partial(jax.tree_util.register_dataclass, data_fields=["key"], meta_fields=["rate"])
@dataclass(frozen=True, eq=False)
class Dropout:
    """Say how to drop: a static rate in [0, 1) and the key that decides what."""

    rate: float
    key: PRNGKeyArray = field()

    def __post_init__(self):
        _levels(self.rate)


def keep_mask(key: PRNGKeyArray, shape: tuple[int, ...], rate: float) -> Bool[Array, "..."]:
    """Draw which elements survive, each with probability `1 - rate` rounded to a multiple of 2⁻¹⁶.

    The result depends on the key and the shape alone, not on how it is sharded.
    """
    # Threefry spends a whole 32-bit word on an element however small its type; two elements share a word here.
    # Pairs lie along the last axis so that every other axis keeps its sharding.
    *lead, width = shape if shape else (1,)
    words = jax.random.bits(key, (*lead, -(-width // 2)), jnp.uint32)
    bits = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(*lead, -1)[..., :width]
    return (bits >= jnp.uint16(_levels(rate))).reshape(shape)


def keep_scale(rate: float) -> float:
    """Give the factor on survivors that makes dropout unbiased, exact for the rate as `keep_mask` rounds it."""
    return _LEVELS / (_LEVELS - _levels(rate))


def dropout(x: Float[Array, "*B"], rate: float, key: PRNGKeyArray | None) -> Float[Array, "*B"]:
    """Zero each element with probability `rate` and scale the rest so that the mean stays; no key, no dropout.

    >>> dropout(jnp.ones(4), 0.5, None)
    Array([1., 1., 1., 1.], dtype=float32)
    >>> float(dropout(jnp.ones(100_000), 0.1, jax.random.key(0)).mean().round(2))
    1.0
    """
    if key is None or _levels(rate) == 0:
        return x
    return jnp.where(keep_mask(key, x.shape, rate), x * jnp.asarray(keep_scale(rate), x.dtype), 0)


def _levels(rate: float) -> int:
    if not 0 <= rate < 1:
        raise ValueError(f"a dropout rate must lie in [0, 1), got {rate}")
    return min(round(rate * _LEVELS), _LEVELS - 1)
