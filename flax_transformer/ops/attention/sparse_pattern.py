"""What the sparse patterns of Child et al. 2019 (https://arxiv.org/abs/1904.10509) have in common: a stride, as long as
their blocks are, and how they serve a cache.

Axes as in `attention`.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.frozen import frozen
from flax_transformer.ops.attention.call import Call
from flax_transformer.ops.attention.dispatch import attention
from flax_transformer.ops.attention.function import AttentionFunction
from flax_transformer.ops.mask import Mask


def root(length: int) -> int:
    """Return the stride nearest to the square root of a length, with which a pattern is cheapest.

    >>> root(1000), root(0)
    (32, 1)
    """
    return max(1, round(math.sqrt(length)))


@frozen
class PatternAttention(AttentionFunction):
    """Softmax attention to what a pattern shows; a subclass says what that is, and attends block by block."""

    stride: int | None = None
    """l of the paper; None: the square root of the length, rounded."""

    supports = frozenset({"causal", "window", "lengths", "segments", "offset", "scale"})

    def __post_init__(self):
        if self.stride is not None and self.stride < 1:
            raise ValueError(f"a stride must be at least 1, got {self.stride}")

    def limit(self, call: Call) -> str | None:
        """Refuse a cache, in which a stride that goes by the length would be another at every size."""
        if self.stride is None and call.mask.offset is not None:
            return "in a cache its stride must be a number, got one that goes by the length"
        return None

    def visible(self, rows: Int[Array, "..."], columns: Int[Array, "..."], length: int) -> Bool[Array, "..."]:
        """Return whether the pattern shows keys at these positions to queries at those, of a text of this length."""
        raise NotImplementedError

    def run_blocks(self, call: Call) -> Float[Array, "*B T N H"]:
        """Attend block by block, where there are as many queries as keys."""
        raise NotImplementedError

    def run(self, call: Call) -> Float[Array, "*B T N H"]:
        """Attend block by block; steps of a cache by the whole pattern."""
        mask, (T, S) = call.mask, call.lengths
        if mask.offset is None:
            return self.run_blocks(call)
        dense = self.visible(mask.query_positions(T, S), jnp.arange(S), S)
        # It has no axis of heads where it has none of a batch.
        mask &= Mask(dense=dense[0] if dense.ndim == 3 else dense)
        return attention(call.q, call.k, call.v, mask, scale=call.scale)
