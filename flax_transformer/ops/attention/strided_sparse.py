"""Strided sparse attention at a cost of O(T · sqrt(T)) (Child et al. 2019, https://arxiv.org/abs/1904.10509, §4.2).

Axes as in `attention`; blocks are as long as the stride.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.frozen import frozen
from flax_transformer.ops.attention.blocks import from_blocks, to_blocks, with_neighbours
from flax_transformer.ops.attention.call import Call
from flax_transformer.ops.attention.neighbour_block import attend_neighbours, over_blocks, seen_by
from flax_transformer.ops.attention.sparse_pattern import PatternAttention, root


@frozen
class StridedAttention(PatternAttention):
    """Softmax attention to the last `stride` positions and to every `stride`-th before: the two patterns of the paper,
    merged in each head. Without a causal mask it is the same to both sides.

    >>> StridedAttention(stride=2).visible(jnp.arange(6)[:, None], jnp.arange(6), 6).astype(int)[5]
    Array([0, 1, 0, 1, 1, 1], dtype=int32)
    """

    name = "strided"

    def visible(self, rows: Int[Array, "..."], columns: Int[Array, "..."], length: int) -> Bool[Array, "..."]:
        """Return whether the pattern shows keys at these positions to queries at those, of a text of this length."""
        stride, away = self.stride or root(length), jnp.abs(columns - rows)
        return (away <= stride) | (away % stride == 0)

    def run_blocks(self, call: Call) -> Float[Array, "*B T N H"]:
        """Attend block by block."""
        mask, scale, T = call.mask, call.resolved_scale, call.lengths[0]
        stride = min(self.stride or root(T), T)
        q, k, v = (to_blocks(x, -3, stride) for x in (call.q, call.k, call.v))
        neighbours = [with_neighbours(x, -3, 1, 0 if mask.causal else 1) for x in (k, v)]
        # Of every query those keys, a block apart each, that have its place in their block.
        far = k, v
        places, blocks = jnp.arange(stride), jnp.arange(q.shape[-4])

        def block(i: Array, q: Array, k: Array, v: Array) -> Array:
            rows = i * stride + places
            columns = (i - 1) * stride + jnp.arange(k.shape[-3])
            seen = seen_by(mask, T, rows, jnp.broadcast_to(columns, (stride, len(columns))))
            seen &= jnp.abs(columns - rows[:, None]) <= stride
            others = blocks * stride + places[:, None]
            far_seen = seen_by(mask, T, rows, others) & (jnp.abs(blocks - i) > 1)
            return attend_neighbours(q, (k, v), seen, scale, far, far_seen)

        return from_blocks(over_blocks(block, q, *neighbours), -3, T)
