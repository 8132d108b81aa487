"""Dropout with cheap random bits (Srivastava et al. 2014, http://jmlr.org/papers/v15/srivastava14a.html).

A draw hashes the place of each element in the whole array, so that whoever holds a part of the array draws that part
alone: `keep_part`, and `ops.row_random` for batches cut into parts.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

from flax_transformer.ops.float32 import scaled
from flax_transformer.ops.remat import DRAWN
from flax_transformer.ops.row_random import drawn_from

_LEVELS = 2**16
_ROUNDS = 13
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)


@partial(jax.tree_util.register_dataclass, data_fields=["key"], meta_fields=["rate"])
@dataclass(frozen=True, eq=False)
class Dropout:
    """Return how to drop: a static rate in [0, 1) and the key that decides what."""

    rate: float
    key: PRNGKeyArray

    def __post_init__(self):
        _levels(self.rate)


def keep_mask(key: PRNGKeyArray, shape: tuple[int, ...], rate: float) -> Bool[Array, "..."]:
    """Draw which elements survive, each with probability `1 - rate` rounded to a multiple of 2⁻¹⁶.

    The result depends on the key and the shape alone, not on how it is sharded.
    """
    whole, at = drawn_from(shape)
    return keep_part(key, whole, rate, at)


def keep_part(
    key: PRNGKeyArray, shape: tuple[int, ...], rate: float, at: dict[int, Int[Array, "_"]]
) -> Bool[Array, "..."]:
    """Draw a part of the `keep_mask` of a whole array: what that has at some indices of some axes.

    With a threefry key nothing but the part is drawn, at four times the price an element if the last axis is cut. With
    others the whole is.

    Args:
        shape: of the whole array.
        at: axis, counted from the front, to the indices wanted along it; axes not named are whole.

    >>> key, rows, columns = jax.random.key(0), jnp.array([4, 1]), jnp.arange(3, 9)
    >>> part = keep_part(key, (6, 10), 0.5, {0: rows, 1: columns})
    >>> bool((part == keep_mask(key, (6, 10), 0.5)[rows][:, columns]).all())
    True
    """
    *lead, width = shape if shape else (1,)
    # jax.random spends one generator call an element; here a call serves four, 16 bits each.
    quarter = -(-width // 4)
    columns = at.get(len(lead))
    if columns is None:
        words = _words(key, (*lead, quarter), at)
        bits = jnp.concatenate([part for word in words for part in (word & 0xFFFF, word >> 16)], axis=-1)[..., :width]
    else:
        low, high = _words(key, (*lead, quarter), {**at, len(lead): columns % quarter})
        turn = (columns // quarter).astype(jnp.uint32)
        bits = (jnp.where(turn < 2, low, high) >> (turn % 2 * 16)) & 0xFFFF
    kept = bits >= _levels(rate)
    return kept if shape else kept[0]


def keep_scale(rate: float) -> float:
    """Return the factor on survivors that makes dropout unbiased, exact for the rate as `keep_mask` rounds it."""
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
    return jnp.where(checkpoint_name(keep_mask(key, x.shape, rate), DRAWN), scaled(x, keep_scale(rate)), 0)


def _levels(rate: float) -> int:
    if not 0 <= rate < 1:
        raise ValueError(f"a dropout rate must lie in [0, 1), got {rate}")
    return min(round(rate * _LEVELS), _LEVELS - 1)


def counts_places(key: PRNGKeyArray) -> bool:
    """Return whether draws by this key hash places (threefry), so that a part can be drawn without the whole."""
    return jax.random.key_data(key).shape == (2,)


def _words(
    key: PRNGKeyArray, shape: tuple[int, ...], at: dict[int, Int[Array, "_"]]
) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """Draw two random words a place: by threefry inlined, so that it fuses, or by jax.random for other keys."""
    if not counts_places(key):
        words = [jax.random.bits(k, shape, jnp.uint32) for k in jax.random.split(key)]
        for axis, indices in at.items():
            words = [jnp.take(word, indices, axis) for word in words]
        return words[0], words[1]
    low, high, *more = _places(shape, at)
    words = tuple(jax.random.key_data(key))
    for word in more:
        words = _threefry(words, word, 0)
    return _threefry(words, low, high)


def _places(shape: tuple[int, ...], at: dict[int, Int[Array, "_"]]) -> list[Array | int]:
    """Number the places of an array, in two words of 32 bits or more: each as many axes as it can count, last first."""
    part = tuple(at[axis].shape[0] if axis in at else size for axis, size in enumerate(shape))
    words, stride = [0], 1
    for axis in reversed(range(len(shape))):
        if stride * shape[axis] > 2**32 - (len(words) == 1):  # the first word leaves one number out
            words, stride = [*words, 0], 1
        if axis in at:
            index = jax.lax.broadcast_in_dim(at[axis].astype(jnp.uint32), part, (axis,))
        else:
            index = jax.lax.broadcasted_iota(jnp.uint32, part, axis)
        words[-1] += index * np.uint32(stride % 2**32)
        stride *= shape[axis]
    return words if len(words) > 1 else [*words, 0]


def _threefry(key: tuple[Array, Array], low: Array | int, high: Array | int) -> tuple[Array, Array]:
    """Hash each count of two words to two words by Threefry-2x32 with 13 rounds, the fewest that pass BigCrush.

    Source: Salmon et al. 2011, https://doi.org/10.1145/2063384.2063405.
    """
    keys = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(0x1BD11BDA))
    a, b = low + keys[0], high + keys[1]
    for step in range(_ROUNDS):
        a = a + b
        turn = _ROTATIONS[step % 8]
        b = ((b << turn) | (b >> (32 - turn))) ^ a
        if step % 4 == 3:
            turns = step // 4 + 1
            a, b = a + keys[turns % 3], b + keys[(turns + 1) % 3] + jnp.uint32(turns)
    return a, b
