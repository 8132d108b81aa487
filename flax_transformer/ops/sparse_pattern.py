"""What the sparse patterns of Child et al. 2019 (https://arxiv.org/abs/1904.10509) have in common: a stride, as long as
their blocks are, and how they serve a cache.

Axes as in `attention`.
"""

import math

import jax.numpy as jnp
from jax import ShapeDtypeStruct
from jaxtyping import Array, Bool, Int

from flax_transformer.frozen import frozen
from flax_transformer.ops.attention import attention
from flax_transformer.ops.mask import Mask
from flax_transformer.ops.variant import Variant


def root(length: int) -> int:
    """Return the stride nearest to the square root of a length, with which a pattern is cheapest.

    >>> root(1000), root(0)
    (32, 1)
    """
    return max(1, round(math.sqrt(length)))


@frozen
class PatternAttention(Variant):
    """Softmax attention to what a pattern shows; a subclass says what that is, and attends block by block."""

    stride: int | None = None
    """l of the paper; None: the square root of the length, rounded."""

    able = frozenset({"causal", "window", "lengths", "segments", "offset", "scale"})

    def __post_init__(self):
        if self.stride is not None and self.stride < 1:
            raise ValueError(f"a stride must be at least 1, got {self.stride}")

    def limit(self, q: Array | ShapeDtypeStruct, k: Array | ShapeDtypeStruct, mask: Mask) -> str | None:
        """Refuse a cache, in which a stride that goes by the length would be another at every size."""
        if self.stride is None and mask.offset is not None:
            return "in a cache its stride must be a number, got one that goes by the length"
        return None

    def visible(self, rows: Int[Array, "..."], columns: Int[Array, "..."], length: int) -> Bool[Array, "..."]:
        """Say whether the pattern shows keys at these positions to queries at those, of a text of this length."""
        raise NotImplementedError

    def mix_blocks(self, q: Array, k: Array, v: Array, mask: Mask, scale: float) -> Array:
        """Attend block by block, where there are as many queries as keys."""
        raise NotImplementedError

    def mix(self, q: Array, k: Array, v: Array, mask: Mask, bias: None, scale: float, dropout: None) -> Array:
        """Attend block by block; steps of a cache by the whole pattern."""
        T, S = q.shape[-3], k.shape[-3]
        if mask.offset is None:
            return self.mix_blocks(q, k, v, mask, scale)
        dense = self.visible(mask.query_positions(T, S), jnp.arange(S), S)
        # It has no axis of heads where it has none of a batch.
        return attention(q, k, v, mask & Mask(dense=dense[0] if dense.ndim == 3 else dense), scale=scale)
