"""Dropout with cheap random bits (Srivastava et al. 2014, http://jmlr.org/papers/v15/srivastava14a.html)."""

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, UInt32

_LEVELS = 2**16
_ROUNDS = 13
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)


@partial(jax.tree_util.register_dataclass, data_fields=["key"], meta_fields=["rate"])
@dataclass(frozen=True, eq=False)
class Dropout:
    """Say how to drop: a static rate in [0, 1) and the key that decides what."""

    rate: float
    key: PRNGKeyArray

    def __post_init__(self):
        _levels(self.rate)


def keep_mask(key: PRNGKeyArray, shape: tuple[int, ...], rate: float) -> Bool[Array, "..."]:
    """Draw which elements survive, each with probability `1 - rate` rounded to a multiple of 2⁻¹⁶.

    The result depends on the key and the shape alone, not on how it is sharded.
    """
    *lead, width = shape if shape else (1,)
    # jax.random spends one generator call an element; here a call serves four, 16 bits each.
    words = _words(key, (*lead, -(-width // 4)))
    bits = jnp.concatenate([part for word in words for part in (word & 0xFFFF, word >> 16)], axis=-1)
    return (bits[..., :width] >= _levels(rate)).reshape(shape)


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


def _words(key: PRNGKeyArray, shape: tuple[int, ...]) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """Draw two random words a place: by threefry inlined, so that it fuses, or by jax.random for other keys."""
    data = jax.random.key_data(key)
    if data.shape != (2,):
        first, second = jax.random.split(key)
        return jax.random.bits(first, shape, jnp.uint32), jax.random.bits(second, shape, jnp.uint32)
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    places = (jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * stride for axis, stride in enumerate(strides))
    return _threefry(data, sum(places))


def _threefry(key: UInt32[Array, "2"], count: UInt32[Array, "..."]) -> tuple[Array, Array]:
    """Hash each count to two words by Threefry-2x32 with 13 rounds, the fewest that pass BigCrush.

    Source: Salmon et al. 2011, https://doi.org/10.1145/2063384.2063405.
    """
    keys = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(0x1BD11BDA))
    a, b = count + keys[0], keys[1]
    for step in range(_ROUNDS):
        a = a + b
        turn = _ROTATIONS[step % 8]
        b = ((b << turn) | (b >> (32 - turn))) ^ a
        if step % 4 == 3:
            turns = step // 4 + 1
            a, b = a + keys[turns % 3], b + keys[(turns + 1) % 3] + jnp.uint32(turns)
    return a, b
