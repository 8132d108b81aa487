"""Strided sparse attention at a cost of O(T · sqrt(T)) (Child et al. 2019, https://arxiv.org/abs/1904.10509, §4.2).

Axes as in `attention`; blocks are as long as the stride.
"""

import math

import jax.numpy as jnp
from jax import ShapeDtypeStruct
from jaxtyping import Array, Bool, Int

from flax_transformer.frozen import frozen
from flax_transformer.ops.attention import attention
from flax_transformer.ops.mask import Mask
from flax_transformer.ops.near import (
    PATTERN_MASK,
    from_blocks,
    mix_near,
    over_blocks,
    seen_by,
    to_blocks,
    with_neighbours,
)
from flax_transformer.ops.variant import Variant

NO_CACHE = "in a cache its stride must be a number, got one that goes by the length"


def root(length: int) -> int:
    """Give the stride nearest to the square root of a length, with which a pattern is cheapest.

    >>> root(1000), root(0)
    (32, 1)
    """
    return max(1, round(math.sqrt(length)))


@frozen
class StridedAttention(Variant):
    """Softmax attention to the last `stride` positions and to every `stride`-th before: the two patterns of the paper,
    merged in each head. Without a causal mask it is the same to both sides.

    >>> StridedAttention(stride=2).visible(jnp.arange(6)[:, None], jnp.arange(6), 6).astype(int)[5]
    Array([0, 1, 0, 1, 1, 1], dtype=int32)
    """

    stride: int | None = None
    """l of the paper; None: the square root of the length, rounded."""

    name = "strided"
    able = PATTERN_MASK | {"scale"}

    def __post_init__(self):
        if self.stride is not None and self.stride < 1:
            raise ValueError(f"a stride must be at least 1, got {self.stride}")

    def limit(self, q: Array | ShapeDtypeStruct, k: Array | ShapeDtypeStruct, mask: Mask) -> str | None:
        """Refuse a cache, in which a stride that goes by the length would be another at every size."""
        return NO_CACHE if self.stride is None and mask.offset is not None else None

    def visible(self, rows: Int[Array, "..."], columns: Int[Array, "..."], length: int) -> Bool[Array, "..."]:
        """Say whether the pattern shows keys at these positions to queries at those, of a text of this length."""
        stride, away = self.stride or root(length), jnp.abs(columns - rows)
        return (away <= stride) | (away % stride == 0)

    def mix(self, q: Array, k: Array, v: Array, mask: Mask, bias: None, scale: float, dropout: None) -> Array:
        """Attend block by block; steps of a cache by the whole pattern."""
        T, S = q.shape[-3], k.shape[-3]
        if mask.offset is not None:
            dense = self.visible(mask.query_positions(T, S), jnp.arange(S), S)
            return attention(q, k, v, with_pattern(mask, dense), scale=scale)
        stride = min(self.stride or root(T), T)
        q, k, v = (to_blocks(x, stride) for x in (q, k, v))
        around = (1, 0) if mask.causal else (1, 1)
        near = [with_neighbours(x, *around) for x in (k, v)]
        # Of every query those keys, a block apart each, that have its place in their block.
        far = [jnp.moveaxis(x, 0, -4) for x in (k, v)]
        places, blocks = jnp.arange(stride), jnp.arange(len(q))

        def block(i: Array, q: Array, k: Array, v: Array) -> Array:
            rows = i * stride + places
            columns = (i - 1) * stride + jnp.arange(k.shape[-3])
            seen = seen_by(mask, S, rows, jnp.broadcast_to(columns, (stride, len(columns))))
            seen &= jnp.abs(columns - rows[:, None]) <= stride
            others = blocks * stride + places[:, None]
            far_seen = seen_by(mask, S, rows, others) & (jnp.abs(blocks - i) > 1)
            return mix_near(q, (k, v), seen, scale, tuple(far), far_seen)

        return from_blocks(over_blocks(block, blocks, q, *near), T)


def with_pattern(mask: Mask, dense: Bool[Array, "*#B N T S"]) -> Mask:
    """Hide what a pattern hides too; `dense` has no axis of heads where it has none of a batch."""
    return mask & Mask(dense=dense[0] if dense.ndim == 3 else dense)
