"""Softmax attention by landmarks, in linear time: the Nyström method (Xiong et al. 2021, https://arxiv.org/abs/2102.03902).

softmax(Q K̃ᵀ) · softmax(Q̃ K̃ᵀ)⁺ · softmax(Q̃ Kᵀ) V, where landmarks Q̃ and K̃ are means of segments, and the inverse is
iterated (Razavi et al. 2014).

Axes as in `attention`; M landmarks.
"""

from typing import Literal

import jax.numpy as jnp
from einops import reduce
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.ops.attention.call import Call
from flax_transformer.ops.attention.function import AttentionFunction
from flax_transformer.ops.attention.xla import XlaAttention, attention_weights
from flax_transformer.ops.float32 import widen
from flax_transformer.ops.mask import Mask


def iterated_inverse(
    matrix: Float[Array, "*B M M"], steps: int, start: Literal["each", "batch"] = "each"
) -> Float[Array, "*B M M"]:
    """Approach the pseudo-inverse of matrices whose rows are weights of a softmax.

    Args:
      start: divide the first guess by the largest sum of a column of each matrix, or of all matrices.

    >>> weights = jnp.array([[0.9, 0.1], [0.2, 0.8]])
    >>> bool(jnp.allclose(iterated_inverse(weights, 8) @ weights, jnp.eye(2), atol=1e-4))
    True
    """
    one = jnp.eye(matrix.shape[-1], dtype=matrix.dtype)
    columns = matrix.sum(axis=-2)
    largest = columns.max() if start == "batch" else columns.max(axis=-1)[..., None, None]
    inverse = jnp.swapaxes(matrix, -1, -2) / largest
    for _ in range(steps):
        there = matrix @ inverse
        inverse = 0.25 * inverse @ (13 * one - there @ (15 * one - there @ (7 * one - there)))
    return inverse


@frozen
class NystromAttention(AttentionFunction):
    """Softmax attention through landmarks; exact where there are as many landmarks as positions.

    What `lengths`, or a dense mask of one row for all queries, hide gets no weight, but is in the means of landmarks,
    as published and as `transformers` has it.

    >>> x = jnp.arange(8.0).reshape(8, 1, 1) / 8
    >>> NystromAttention(landmarks=8)(x, x, x).shape
    (8, 1, 1)
    """

    landmarks: int = 64
    """M; it divides the length."""
    steps: int = 6
    """Of the iteration to the inverse."""
    start: Literal["each", "batch"] = "each"
    """Where it begins: for each head and row by its own size, or for all by the largest, as `transformers` does by
    default, with which the rows of a batch are not independent."""

    name = "nystrom"
    supports = frozenset({"lengths", "dense", "scale"})

    def __post_init__(self):
        if self.landmarks < 1 or self.steps < 0:
            raise ValueError(f"landmarks are at least 1 and steps 0, got {self.landmarks} and {self.steps}")

    def limit(self, call: Call) -> str | None:
        """Refuse lengths that cannot be cut into segments."""
        (T, _), dense = call.lengths, call.mask.dense
        if T % self.landmarks:
            return f"its landmarks must divide the length, got T={T}, landmarks={self.landmarks}"
        if dense is not None and dense.shape[-2] != 1 and self.landmarks != T:
            return f"its dense mask must hide the same keys of all queries, got {dense.shape}"
        return None

    def run(self, call: Call) -> Float[Array, "*B T N H"]:
        """Mix through landmarks."""
        q, k, v, mask, scale = call.q, call.k, call.v, call.mask, call.resolved_scale
        T, N = q.shape[-3], q.shape[-2]
        if self.landmarks == T:
            return XlaAttention().run(call)
        k, v = (jnp.repeat(x, N // x.shape[-2], axis=-2) for x in (k, v))
        q_mean, k_mean = (
            reduce(widen(x), "... (M t) N H -> ... M N H", "mean", M=self.landmarks).astype(x.dtype) for x in (q, k)
        )
        to_landmarks = attention_weights(q, k_mean, scale=scale)
        between = iterated_inverse(attention_weights(q_mean, k_mean, scale=scale), self.steps, self.start)
        from_landmarks = attention_weights(q_mean, k, Mask(lengths=mask.lengths, dense=mask.dense), scale=scale)
        seen = jnp.einsum("...nms,...snh->...nmh", from_landmarks, widen(v))
        return jnp.einsum("...ntm,...nmh->...tnh", to_landmarks @ between, seen).astype(v.dtype)
