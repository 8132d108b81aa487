"""Softmax attention whose scores a tanh keeps within bounds (Gemma Team 2024, https://arxiv.org/abs/2408.00118, §2).

Axes: B batch, T query positions, S key positions, N query heads, H head width.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.ops.attention.call import FEATURES, Call
from flax_transformer.ops.attention.function import AttentionFunction
from flax_transformer.ops.attention.xla import WEIGHTS, attention_logits, masked_softmax, weighted_values


@frozen
class CappedAttention(AttentionFunction):
    """Attention by the softmax of `cap · tanh(scores / cap)`, which materialises the scores.

    >>> import jax
    >>> q, k, v = 9 * jax.random.normal(jax.random.key(0), (3, 5, 2, 4))
    >>> CappedAttention(cap=2.0)(q, k, v).shape
    (5, 2, 4)
    """

    cap: float = 50.0

    name = "capped"
    supports = frozenset(FEATURES)

    def __post_init__(self):
        if not self.cap > 0:
            raise ValueError(f"the cap of scores must be above 0, got {self.cap}")

    def run(self, call: Call) -> Float[Array, "*B T N H"]:
        """Attend."""
        scores = soft_cap(attention_logits(call.q, call.k, call.bias, scale=call.resolved_scale), self.cap)
        weights = masked_softmax(scores, call.mask.materialize(call.q.shape[-3], call.k.shape[-3]), WEIGHTS)
        return weighted_values(weights, call.v, call.dropout, call.q.dtype)


def soft_cap(x: Float[Array, "*B"], cap: float | None) -> Float[Array, "*B"]:
    """Return `cap · tanh(x / cap)`, which is x where it is small and stays within ± cap; None: x."""
    return x if cap is None else cap * jnp.tanh(x / cap)
