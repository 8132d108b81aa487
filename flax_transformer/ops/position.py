"""Telling a Transformer where things are: sinusoids, rotary angles, linear biases, relative buckets.

Axes: B batch, T query positions, S key positions, N heads, H head width, D model width, half the pairs of channels.
"""

import math

import jax.numpy as jnp
import numpy as np
from einops import rearrange
from jaxtyping import Array, Float, Int

from flax_transformer.ops.float32 import at_least_float32, widen
from flax_transformer.ops.mask_field import check_broadcast

WIDEST = 2**20
"""Channels that positions may have: their frequencies are made when a program is traced, with memory of their own."""


def sinusoidal(positions: Int[Array, "*B T"], width: int) -> Float[Array, "*B T D"]:
    """Encode positions as sines (even channels) and cosines (odd) of wavelengths 2π to 20000π.

    Source: Vaswani et al. 2017, section 3.5.

    Raises:
        ValueError: an odd width.

    >>> sinusoidal(jnp.arange(2), 4)
    Array([[0.  , 1.  , 0.  , 1.  ],
           [0.84..., 0.54..., 0.0..., 0.99...]], dtype=float32)
    """
    return rearrange(jnp.stack(_waves(positions, width), -1), "... D two -> ... (D two)")


def sinusoidal_halves(positions: Int[Array, "*B T"], width: int) -> Float[Array, "*B T D"]:
    """Encode positions as `sinusoidal` does, all sines first, then all cosines: the order of Marian and tensor2tensor.

    >>> sinusoidal_halves(jnp.arange(2), 4)
    Array([[0. , 0. , 1. , 1. ],
           [0.84..., 0.0..., 0.54..., 0.99...]], dtype=float32)
    """
    return jnp.concatenate(_waves(positions, width), -1)


def sinusoidal_spanning(positions: Int[Array, "*B T"], width: int) -> Float[Array, "*B T D"]:
    """Encode positions as `sinusoidal_halves` does, with wavelengths that reach 20000π: the spacing of fairseq.

    >>> sinusoidal_spanning(jnp.arange(2), 2)
    Array([[0. , 1. ],
           [0.84..., 0.54...]], dtype=float32)
    """
    return jnp.concatenate(_waves(positions, width, max(width // 2 - 1, 1)), -1)


def _waves(positions, width, steps=None):
    """Return sines and cosines; `steps` of wavelengths, each as much longer, lead to 20000π (None: one a pair)."""
    if width % 2:
        raise ValueError(f"sines and cosines come in pairs, so the width must be even, got {width}")
    if width > WIDEST:
        raise ValueError(f"the width of positions must be at most {WIDEST:,}, got {width:,}")
    # Count turns, not radians, and split the frequency: the coarse part (12 bits) times a position below 4096 is
    # exact in float32, so whole turns drop out without rounding and position 4000 is as precise as position 4.
    exponents = np.arange(0, width, 2) / width if steps is None else np.arange(width // 2) / steps
    turns = 10000.0**-exponents / (2 * math.pi)
    coarse = np.ldexp(np.round(np.ldexp(np.frexp(turns)[0], 12)), np.frexp(turns)[1] - 12)
    where = positions[..., None].astype(jnp.float32)
    whole = where * coarse.astype(np.float32)
    angle = 2 * math.pi * ((whole - jnp.round(whole)) + where * (turns - coarse).astype(np.float32))
    return jnp.sin(angle), jnp.cos(angle)


def rotary(
    x: Float[Array, "*B T N H"],
    positions: Int[Array, "*#B T"],
    frequencies: Float[Array, "*#B half"],
    *,
    amplitude: float = 1.0,
) -> Float[Array, "*B T N H"]:
    """Turn channel pairs `(i, i + H/2)` by position times frequency, so that products depend on distances only.

    Source: Su et al. 2021, https://arxiv.org/abs/2104.09864, in the half-split layout of Llama. Angles are float32 or
    more, and nothing is rounded but the result.

    Args:
      frequencies: of all rows, or of each.
      amplitude: what sines and cosines are multiplied by.

    >>> rotary(jnp.ones((1, 1, 2)), jnp.array([1]), jnp.array([jnp.pi / 2])).round(2)
    Array([[[-1.,  1.]]], dtype=float32)
    """
    if 2 * frequencies.shape[-1] != x.shape[-1]:
        raise ValueError(f"rotary needs H/2 frequencies, got {frequencies.shape[-1]} for H={x.shape[-1]}")
    check_broadcast("positions", positions.shape, x.shape[:-2])
    angle = positions[..., None, None].astype(at_least_float32(x.dtype)) * frequencies[..., None, None, :]
    return turn_pairs(x, angle, amplitude=amplitude)


def rotary_sections(
    x: Float[Array, "*B T N H"],
    positions: Int[Array, "*#B T axes"],
    frequencies: Float[Array, "*#B half"],
    sections: tuple[int, ...],
    *,
    amplitude: float = 1.0,
) -> Float[Array, "*B T N H"]:
    """Turn channel pairs as `rotary` does, where a position has several ids, each of which turns some of the pairs.

    It is multimodal rotary position embedding (M-RoPE, Wang et al. 2024, https://arxiv.org/abs/2409.12191): time, row
    and column of each token. Where the ids of a position agree, it is `rotary`.

    Args:
      positions: the ids of each position, on the last axis.
      frequencies: of all rows, or of each.
      sections: how many pairs each id turns, one after another, H/2 in all.
      amplitude: what sines and cosines are multiplied by.

    Raises:
      ValueError: sections that are not as many as the ids, or do not add up to H/2.

    >>> rotary_sections(jnp.ones((1, 1, 4)), jnp.array([[1, 0]]), jnp.full(2, jnp.pi / 2), (1, 1)).round(2)
    Array([[[-1.,  1.,  1.,  1.]]], dtype=float32)
    """
    half = x.shape[-1] // 2
    if len(sections) != positions.shape[-1] or sum(sections) != half or frequencies.shape[-1] != half:
        raise ValueError(
            f"sections must be one for each of {positions.shape[-1]} position ids and add up to H/2={half}, the number "
            f"of frequencies, got {sections} and {frequencies.shape[-1]} frequencies"
        )
    check_broadcast("positions", positions.shape[:-1], x.shape[:-2])
    which = np.repeat(np.arange(len(sections)), sections)
    angle = positions[..., which].astype(at_least_float32(x.dtype)) * frequencies[..., None, :]
    return turn_pairs(x, angle[..., None, :], amplitude=amplitude)


def turn_pairs(
    x: Float[Array, "*B T N H"], angle: Float[Array, "*#B T #N half"], *, amplitude: float = 1.0
) -> Float[Array, "*B T N H"]:
    """Turn channel pairs `(i, i + H/2)` by angles, in radians; the rest as of `rotary`.

    >>> turn_pairs(jnp.ones((1, 1, 2)), jnp.full((1, 1, 1), jnp.pi / 2)).round(2)
    Array([[[-1.,  1.]]], dtype=float32)
    """
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    if amplitude != 1:
        sin, cos = sin * amplitude, cos * amplitude
    a, b = jnp.split(widen(x), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def split_pairs(x: Float[Array, "*B H"]) -> Float[Array, "*B H"]:
    """Move channels 2i to i and 2i + 1 to i + H/2, so that neighbours are the pairs that `turn_pairs` turns.

    >>> split_pairs(jnp.arange(4.0)).tolist()
    [0.0, 2.0, 1.0, 3.0]
    """
    return jnp.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)


def alibi(heads: int, T: int, S: int, offset: Int[Array, ""] | int | None = None) -> Float[Array, "N T S"]:
    """Make an attention bias that falls linearly with distance, by its own slope per head.

    Source: Press et al. 2022, https://arxiv.org/abs/2108.12409; the slopes for a number of heads that is no power
    of two as in the authors' code. `offset` is the first query's position among the keys, `S - T` by default.

    >>> alibi(8, 1, 3, offset=0)[0]
    Array([[-0. , -0.5, -1. ]], dtype=float32)
    """
    query = jnp.arange(T)[:, None] + (S - T if offset is None else offset)
    distance = jnp.abs(jnp.arange(S) - query).astype(jnp.float32)
    return -jnp.asarray(_slopes(heads), jnp.float32)[:, None, None] * distance


def _slopes(heads: int) -> list[float]:
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return slopes + ([] if power == heads else _slopes(2 * power)[::2][: heads - power])


def relative_buckets(relative: Int[Array, "*B"], *, buckets: int = 32, max_distance: int = 128) -> Int[Array, "*B"]:
    """Sort key-minus-query distances into buckets, half for each direction: T5's encoder.

    Half of a direction's buckets hold one distance each, the rest grow logarithmically up to `max_distance`.
    Source: Raffel et al. 2020, https://arxiv.org/abs/1910.10683.

    >>> relative_buckets(jnp.array([-200, -1, 0, 1, 200]))
    Array([15,  1,  0, 17, 31], dtype=int32)
    """
    half = buckets // 2
    if buckets % 2:
        raise ValueError(f"each direction has half of the buckets, so they must be even, got {buckets}")
    return jnp.where(relative > 0, half, 0) + _bucket(jnp.abs(relative), half, max_distance)


def causal_relative_buckets(
    relative: Int[Array, "*B"], *, buckets: int = 32, max_distance: int = 128
) -> Int[Array, "*B"]:
    """Sort key-minus-query distances into buckets of the past; the future shares bucket 0: T5's decoder.

    >>> causal_relative_buckets(jnp.array([-200, -1, 0, 1]))
    Array([31,  1,  0,  0], dtype=int32)
    """
    return _bucket(jnp.maximum(-relative, 0), buckets, max_distance)


def _bucket(distance, buckets, max_distance):
    exact = buckets // 2
    if exact < 1 or max_distance <= exact:
        raise ValueError(f"two buckets or more sort distances above half of them, got {buckets} up to {max_distance}")
    ratio = jnp.log(jnp.maximum(distance, 1).astype(jnp.float32) / exact) / math.log(max_distance / exact)
    far = exact + (ratio * (buckets - exact)).astype(jnp.int32)
    return jnp.where(distance < exact, distance, jnp.minimum(far, buckets - 1))
