"""Attention as plain einsums for XLA: any device, any mask, memory O(T S).

Axes as in `attention`; G = N / K query heads share a key/value head.
"""

import math
from functools import partial

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
from flax_transformer.ops.remat import attended
from flax_transformer.ops.rounded_product import rounded_product

WEIGHTS = "attention_weights"
"""The name that weights are marked by for `ops.capture`; compiled, the mark is nothing."""


@frozen
class XlaAttention(AttentionFunction):
    """Softmax attention that materialises the scores; it serves every call."""

    name = "xla"
    supports = frozenset(FEATURES)

    def run(self, call: Call) -> Float[Array, "*B T N H"]:
        """Attend."""
        weights = attention_weights(call.q, call.k, call.mask, call.bias, scale=call.resolved_scale, mark=WEIGHTS)
        return weighted_values(weights, call.v, call.dropout, call.q.dtype)


def mix_weights(
    weights: Float[Array, "*B N T S"],
    v: Float[Array, "*B S K H"] | QArray,
    dropout: Dropout | None = None,
    dtype: DTypeLike | None = None,
) -> Float[Array, "*B T N H"]:
    """Multiply values by weights, some of which are dropped, and mark the weights; see `weighted_values`."""
    return weighted_values(checkpoint_name(weights, WEIGHTS), v, dropout, dtype)


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
    weights, axes = drop_weights(weights, dropout), _axes_of_heads(weights.shape[-3], v.shape[-2])
    weights = _group(weights, v.shape[-2])
    if isinstance(v, QArray):
        v, weights = v.qvalue.astype(dtype or jnp.float32), weights * _by_key(v.scale, axes)
    out = rounded_product(f"...{axes}ts,...skh->...{axes}th", weights.astype(v.dtype), v)
    return attended(jnp.swapaxes(_ungroup(out, axes), -3, -2))


def _axes_of_heads(heads: int, kept: int) -> str:
    """Return the letters of query heads in a product with keys or values of so many heads.

    Where each has its own there is no axis of groups: a loop over layers would keep for the backward pass an array with
    one and the same without.
    """
    return "k" if heads == kept else "kg"


def _group(x: Array, kept: int) -> Array:
    """Give heads, [*B, N, T, D], an axis of groups if they share keys and values, [*B, K, G, T, D]."""
    return x if x.shape[-3] == kept else rearrange(x, "... (K G) T D -> ... K G T D", K=kept)


def _ungroup(x: Array, axes: str) -> Float[Array, "*B N T D"]:
    return x if axes == "k" else rearrange(x, "... K G T D -> ... (K G) T D")


def _by_key(scale: Float[Array, "*B S K 1"], axes: str) -> Array:
    """Lay scales of keys or values out as scores have them, [*B, K, 1, S] or [*B, K, 1, 1, S]."""
    return rearrange(scale, f"... S K 1 -> ... K {' '.join('1' for _ in axes)} S")


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
    mark: str | None = None,
) -> Float[Array, "*B N T S"]:
    """Compute what `attention` multiplies the values by, in float32 or more; rows that see no key are zero.

    Args:
      mark: name that they are marked by.

    >>> q, k = jnp.zeros((2, 1, 8)), jnp.zeros((2, 1, 8))
    >>> attention_weights(q, k, Mask(causal=True))[0]
    Array([[1. , 0. ],
           [0.5, 0.5]], dtype=float32)
    """
    if mask is not None:
        check_mask(mask)
        mask.check(q.shape[:-3], q.shape[-2], q.shape[-3], k.shape[-3])
    logits = attention_logits(q, k, bias, scale=scale)
    return masked_softmax(logits, None if mask is None else mask.materialize(q.shape[-3], k.shape[-3]), mark)


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
    queries = _group(jnp.swapaxes(scaled(q, scale), -3, -2), k.shape[-2])
    axes = _axes_of_heads(q.shape[-2], k.shape[-2])
    pattern = f"...{axes}th,...skh->...{axes}ts"
    if isinstance(k, QArray):
        scores = float32_product(pattern, queries, k.qvalue.astype(q.dtype)) * _by_key(k.scale, axes)
    else:
        scores = float32_product(pattern, queries, k)
    logits = _ungroup(scores, axes)
    return logits if bias is None else logits + bias.astype(logits.dtype)


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def masked_softmax(
    logits: Float[Array, "*B N T S"], visible: Bool[Array, "*#B #N #T #S"] | None, mark: str | None = None
) -> Float[Array, "*B N T S"]:
    """Return the softmax over what is visible; rows that see nothing are zero.

    Args:
      mark: name that the weights are marked by: here, as what is marked later is kept once more for the backward pass.
    """
    if visible is not None:
        logits = jnp.where(visible, logits, -jnp.inf)
    top = jnp.max(logits, axis=-1, keepdims=True, initial=-jnp.inf)
    # A row without a visible key has no maximum; any finite number gives exp(-inf) = 0 there.
    weights = jnp.exp(logits - jnp.where(jnp.isfinite(top), top, 0))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    weights = weights / jnp.where(total == 0, 1, total)
    return weights if mark is None else checkpoint_name(weights, mark)


@masked_softmax.defjvp
def _softmax_jvp(mark, primals, tangents):
    # The tangent needs only the weights: hidden keys have weight 0, so the mask is not applied again, and the
    # backward pass reads one [T, S] array instead of three (2× faster on CPU at T = 512).
    weights = masked_softmax(*primals, mark)
    pull = weights * tangents[0]
    return weights, pull - weights * jnp.sum(pull, axis=-1, keepdims=True)
