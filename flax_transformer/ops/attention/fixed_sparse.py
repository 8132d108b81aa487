"""Fixed sparse attention at a cost of O(T · sqrt(T)) (Child et al. 2019, https://arxiv.org/abs/1904.10509, §4.2).

Axes as in `attention`; blocks are as long as the stride.
"""

import jax.numpy as jnp
from einops import rearrange
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.frozen import frozen
from flax_transformer.ops.attention.blocks import from_blocks, to_blocks
from flax_transformer.ops.attention.call import Call
from flax_transformer.ops.attention.neighbour_block import attend_neighbours, over_blocks, seen_by
from flax_transformer.ops.attention.sparse_pattern import PatternAttention, root


@frozen
class FixedAttention(PatternAttention):
    """Softmax attention to a query's own block of `stride` positions and to the last `summary` of every other block:
    the two patterns of the paper, merged in each head. Without a causal mask it is the same to both sides.

    >>> FixedAttention(stride=3, summary=1).visible(jnp.arange(8)[:, None], jnp.arange(8), 8).astype(int)[7]
    Array([0, 0, 1, 0, 0, 1, 1, 1], dtype=int32)
    """

    summary: int = 8
    """c of the paper, positions at the end of a block that all later ones see; at most a stride."""

    name = "fixed"

    def __post_init__(self):
        super().__post_init__()
        if self.summary < 1 or (self.stride is not None and self.stride < self.summary):
            raise ValueError(
                f"a summary is of 1 position to a stride, got summary={self.summary}, stride={self.stride}"
            )

    def _sizes(self, length: int) -> tuple[int, int]:
        stride = self.stride or root(length)
        return stride, min(self.summary, stride)

    def visible(self, rows: Int[Array, "..."], columns: Int[Array, "..."], length: int) -> Bool[Array, "..."]:
        """Return whether the pattern shows keys at these positions to queries at those, of a text of this length."""
        stride, summary = self._sizes(length)
        return (columns // stride == rows // stride) | (columns % stride >= stride - summary)

    def run_blocks(self, call: Call) -> Float[Array, "*B T N H"]:
        """Attend block by block."""
        mask, scale, T = call.mask, call.resolved_scale, call.lengths[0]
        stride = min(self._sizes(T)[0], T)  # a text shorter than a block is one block
        summary = min(self.summary, stride)
        q, k, v = (to_blocks(x, -3, stride) for x in (call.q, call.k, call.v))
        k_end, v_end = (rearrange(x[..., stride - summary :, :, :], "... I c K H -> ... (I c) K H") for x in (k, v))
        blocks, places = jnp.arange(q.shape[-4]), jnp.arange(stride)
        ends = (blocks[:, None] * stride + places[stride - summary :]).ravel()

        def block(i: Array, q: Array, k: Array, v: Array) -> Array:
            rows = i * stride + places
            columns = jnp.broadcast_to(jnp.concatenate([rows, ends]), (stride, stride + len(ends)))
            other = jnp.concatenate([jnp.ones(stride, bool), ends // stride != i])
            keys, values = (jnp.concatenate(pair, axis=-3) for pair in ((k, k_end), (v, v_end)))
            return attend_neighbours(q, (keys, values), seen_by(mask, T, rows, columns) & other, scale)

        return from_blocks(over_blocks(block, q, k, v), -3, T)
