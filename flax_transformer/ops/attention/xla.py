"""Attention as plain einsums for XLA: any device, any mask, memory O(T S).

Axes as in `attention`; G = N / K query heads share a key/value head.
"""

import math

import jax
import jax.numpy as jnp
from einops import rearrange
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float
from qwix import QArray

from flax_transformer.frozen import frozen
from flax_transformer.ops.attention.call import FEATURES, Call
from flax_transformer.ops.attention.function import AttentionFunction
from flax_transformer.ops.dropout import Dropout, dropout
from flax_transformer.ops.float32 import scaled
from flax_transformer.ops.float32_product import float32_product
from flax_transformer.ops.mask import Mask, check_mask
from flax_transformer.ops.remat_name import attended
from flax_transformer.ops.rounded_product import rounded_product


@frozen
class XlaAttention(AttentionFunction):
    """Softmax attention that materialises the scores; it serves every call."""

    name = "xla"
    supports = frozenset(FEATURES)

    def run(self, call: Call) -> Float[Array, "*B T N H"]:
        """Attend."""
        weights = attention_weights(call.q, call.k, call.mask, call.bias, scale=call.resolved_scale)
        return mix_weights(weights, call.v, call.dropout, call.q.dtype)


def mix_weights(
    weights: Float[Array, "*B N T S"],
    v: Float[Array, "*B S K H"] | QArray,
    dropout: Dropout | None = None,
    dtype: DTypeLike | None = None,
) -> Float[Array, "*B T N H"]:
    """Multiply values by weights, some of which are dropped, and mark the weights; see `weighted_values`."""
    # Marked for `ops.capture`; compiled, the mark is nothing.
    return weighted_values(checkpoint_name(weights, "attention_weights"), v, dropout, dtype)


def weighted_values(
    weights: Float[Array, "*B N T S"],
    v: Float[Array, "*B S K H"] | QArray,
    dropout: Dropout | None = None,
    dtype: DTypeLike | None = None,
) -> Float[Array, "*B T N H"]:
    """Multiply values by weights, some of which are dropped; of few bits, their scales go on the weights.

    Args:
      dtype: to multiply values of few bits in; float32 by default. Others are multiplied in their own.
    """
    grouped = rearrange(drop_weights(weights, dropout), "... (K G) T S -> ... K G T S", K=v.shape[-2])
    if isinstance(v, QArray):
        v, grouped = v.qvalue.astype(dtype or jnp.float32), grouped * _by_key(v.scale)
    out = rounded_product("...kgts,...skh->...kgth", grouped.astype(v.dtype), v)
    return attended(rearrange(out, "... K G T H -> ... T (K G) H"))


def _by_key(scale: Float[Array, "*B S K 1"]) -> Float[Array, "*B K 1 1 S"]:
    """Lay scales of keys or values out as scores have them."""
    return rearrange(scale, "... S K 1 -> ... K 1 1 S")


def drop_weights(weights: Float[Array, "*B"], how: Dropout | None) -> Float[Array, "*B"]:
    """Drop some attention weights, if any are to be."""
    return weights if how is None else dropout(weights, how.rate, how.key)


def attention_weights(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"] | QArray,
    mask: Mask | None = None,
    bias: Float[Array, "*#B #N #T #S"] | None = None,
    *,
    scale: float | None = None,
) -> Float[Array, "*B N T S"]:
    """Compute what `attention` multiplies the values by, in float32 or more; rows that see no key are zero.

    >>> q, k = jnp.zeros((2, 1, 8)), jnp.zeros((2, 1, 8))
    >>> attention_weights(q, k, Mask(causal=True))[0]
    Array([[1. , 0. ],
           [0.5, 0.5]], dtype=float32)
    """
    if mask is not None:
        check_mask(mask)
        mask.check(q.shape[:-3], q.shape[-2], q.shape[-3], k.shape[-3])
    logits = attention_logits(q, k, bias, scale=scale)
    return masked_softmax(logits, None if mask is None else mask.materialize(q.shape[-3], k.shape[-3]))


def attention_logits(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"] | QArray,
    bias: Float[Array, "*#B #N #T #S"] | None = None,
    *,
    scale: float | None = None,
) -> Float[Array, "*B N T S"]:
    """Compute what `attention` takes the softmax of, in float32 or more."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    # Heads before positions is the order the product itself has, so XLA transposes [T, H], never [T, S]; for the same
    # reason the scale goes on the queries.
    grouped = rearrange(scaled(q, scale), "... T (K G) H -> ... K G T H", K=k.shape[-2])
    if isinstance(k, QArray):
        scores = float32_product(_SCORE, grouped, k.qvalue.astype(q.dtype)) * _by_key(k.scale)
    else:
        scores = float32_product(_SCORE, grouped, k)
    logits = rearrange(scores, "... K G T S -> ... (K G) T S")
    return logits if bias is None else logits + bias.astype(logits.dtype)


_SCORE = "...kgth,...skh->...kgts"


@jax.custom_jvp
def masked_softmax(
    logits: Float[Array, "*B N T S"], visible: Bool[Array, "*#B #N #T #S"] | None
) -> Float[Array, "*B N T S"]:
    """Return the softmax over what is visible; rows that see nothing are zero."""
    if visible is not None:
        logits = jnp.where(visible, logits, -jnp.inf)
    top = jnp.max(logits, axis=-1, keepdims=True, initial=-jnp.inf)
    # A row without a visible key has no maximum; any finite number gives exp(-inf) = 0 there.
    weights = jnp.exp(logits - jnp.where(jnp.isfinite(top), top, 0))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    return weights / jnp.where(total == 0, 1, total)


@masked_softmax.defjvp
def _softmax_jvp(primals, tangents):
    # The tangent needs only the weights: hidden keys have weight 0, so the mask is not applied again, and the
    # backward pass reads one [T, S] array instead of three (2× faster on CPU at T = 512).
    weights = masked_softmax(*primals)
    pull = weights * tangents[0]
    return weights, pull - weights * jnp.sum(pull, axis=-1, keepdims=True)
