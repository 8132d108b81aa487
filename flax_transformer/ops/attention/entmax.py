"""Normalisers with exact zeros in place of the softmax: sparsemax (Martins & Astudillo 2016,
https://arxiv.org/abs/1602.02068) and 1.5-entmax (Peters et al. 2019, https://arxiv.org/abs/1905.05702).

Axes as in `attention`; S are the keys that share the weights.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float
from optax.projections import projection_simplex

from flax_transformer.frozen import frozen
from flax_transformer.ops.attention.call import FEATURES, Call
from flax_transformer.ops.attention.function import AttentionFunction
from flax_transformer.ops.attention.xla import attention_logits, mix_weights


def sparsemax(logits: Float[Array, "*B S"], visible: Bool[Array, "..."] | None = None) -> Float[Array, "*B S"]:
    """Return the weights nearest to the logits: none below 0, together 1. Rows that see nothing are zero.

    >>> sparsemax(jnp.array([1.0, 0.5, -1.0]))
    Array([0.75, 0.25, 0.  ], dtype=float32)
    """
    shifted, some = _below_top(logits, visible, 2.0)
    weights = jax.vmap(projection_simplex)(shifted.reshape(-1, shifted.shape[-1])).reshape(shifted.shape)
    return jnp.where(some, weights, 0)


def entmax(logits: Float[Array, "*B S"], visible: Bool[Array, "..."] | None = None) -> Float[Array, "*B S"]:
    """Return weights between softmax's and sparsemax's, α = 1.5: max(z / 2 − τ, 0)². Rows that see nothing are zero.

    >>> entmax(jnp.array([1.0, 0.5, -3.0])).round(3)
    Array([0.674, 0.326, 0.   ], dtype=float32)
    """
    shifted, some = _below_top(logits, visible, 4.0)
    return jnp.where(some, _entmax(shifted), 0)


def _below_top(logits: Array, visible: Array | None, depth: float) -> tuple[Array, Array]:
    """Return what is visible from its largest down, and whether there is any; at `depth` below it all weights are 0."""
    visible = jnp.ones((), bool) if visible is None else visible
    logits = jnp.where(visible, logits, -jnp.inf)
    top = jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
    some = jnp.isfinite(top)
    return jnp.maximum(jnp.where(some & jnp.isfinite(logits), logits - top, -depth), -depth), some


@jax.custom_jvp
def _entmax(logits: Float[Array, "*B S"]) -> Float[Array, "*B S"]:
    """Find the threshold in the sorted logits, as Peters et al. do (algorithm 2)."""
    halves = logits / 2
    ordered = jnp.flip(jnp.sort(halves, axis=-1), axis=-1)
    count = jnp.arange(1, logits.shape[-1] + 1, dtype=logits.dtype)
    mean = jnp.cumsum(ordered, axis=-1) / count
    spread = jnp.cumsum(ordered**2, axis=-1) - count * mean**2
    thresholds = mean - jnp.sqrt(jnp.maximum((1 - spread) / count, 0))
    support = jnp.sum(thresholds <= ordered, axis=-1, keepdims=True)
    threshold = jnp.take_along_axis(thresholds, support - 1, axis=-1)
    return jnp.maximum(halves - threshold, 0) ** 2


@_entmax.defjvp
def _entmax_jvp(primals, tangents):
    weights = _entmax(*primals)
    # Away from 0 a square root has a derivative; where a weight is 0 nothing moves, in derivatives of these too.
    roots = jnp.where(weights > 0, jnp.sqrt(jnp.where(weights > 0, weights, 1)), 0)
    moved = roots * tangents[0]
    return weights, moved - roots * (moved.sum(axis=-1, keepdims=True) / roots.sum(axis=-1, keepdims=True))


class _Normalised(AttentionFunction):
    """Attention whose weights are made of the scores by another function than the softmax."""

    supports = frozenset(FEATURES)

    def run(self, call: Call) -> Float[Array, "*B T N H"]:
        """Mix by the weights, which are materialised: memory O(T S)."""
        logits = attention_logits(call.q, call.k, call.bias, scale=call.resolved_scale)
        weights = self.normalise(logits, call.mask.materialize(*call.lengths))
        return mix_weights(weights, call.v, call.dropout, call.q.dtype)


@frozen
class SparsemaxAttention(_Normalised):
    """Attention by `sparsemax`: most weights are exactly 0.

    >>> q, v = jnp.full((2, 1, 1), 2.0), jnp.array([[[1.0]], [[3.0]]])
    >>> SparsemaxAttention()(q, jnp.array([[[0.0]], [[2.0]]]), v)[:, 0, 0]
    Array([3., 3.], dtype=float32)
    """

    name = "sparsemax"
    normalise = staticmethod(sparsemax)


@frozen
class EntmaxAttention(_Normalised):
    """Attention by `entmax`: small weights are exactly 0.

    >>> q, v = jnp.full((2, 1, 1), 2.0), jnp.array([[[1.0]], [[3.0]]])
    >>> EntmaxAttention()(q, jnp.array([[[0.0]], [[2.0]]]), v)[:, 0, 0]
    Array([3., 3.], dtype=float32)
    """

    name = "entmax"
    normalise = staticmethod(entmax)
