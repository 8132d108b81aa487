"""Attention in time and memory linear in the length: products of features of queries and keys, in place of a softmax
(Katharopoulos et al. 2020, https://arxiv.org/abs/2006.16236).

What a causal query sees is a sum over the past, kept in a state of fixed size: training goes by chunks (§3.3), decoding
one position at a time (`LinearState`, §3.4). The features of `ops.performer` go the same way.

Axes as in `attention`; F features of a head, C positions of a chunk.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from einops import rearrange
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.ops.attention.blocks import from_blocks, to_blocks
from flax_transformer.ops.attention.call import Call
from flax_transformer.ops.attention.function import AttentionFunction
from flax_transformer.ops.float32 import at_least_float32, product, widen
from flax_transformer.ops.mask import Mask

_CHUNK = 128
LOWEST = -1e30
"""The scale of a key that nobody sees: the difference of two is 0, not NaN as that of infinities."""


class LinearState(NamedTuple):
    """All that later queries need of the keys and values so far."""

    values: Float[Array, "*B K F H"]
    """Sum of products of features and values."""
    features: Float[Array, "*B K F"]
    """Sum of the features."""

    @classmethod
    def empty(cls, rows: tuple[int, ...], heads: int, features: int, width: int) -> "LinearState":
        """Make the state before the first position."""
        return cls(jnp.zeros((*rows, heads, features, width)), jnp.zeros((*rows, heads, features)))

    def add(self, k: Float[Array, "*B S K F"], v: Float[Array, "*B S K H"]) -> "LinearState":
        """Take in features of keys and their values."""
        k = widen(k)
        values = self.values + jnp.einsum("...skf,...skh->...kfh", k, v.astype(k.dtype))
        return LinearState(values, self.features + k.sum(axis=-3))

    def attend(self, q: Float[Array, "*B T N F"]) -> tuple[Float[Array, "*B T N H"], Float[Array, "*B T N"]]:
        """Return what features of queries see, and by how much to divide it."""
        q = rearrange(widen(q), "... T (K G) F -> ... T K G F", K=self.values.shape[-3])
        seen = jnp.einsum("...tkgf,...kfh->...tkgh", q, self.values)
        total = jnp.einsum("...tkgf,...kf->...tkg", q, self.features)
        return rearrange(seen, "... K G H -> ... (K G) H"), rearrange(total, "... K G -> ... (K G)")


def elu_features(x: Float[Array, "*B H"]) -> Float[Array, "*B H"]:
    """Return elu(x) + 1, above 0 everywhere.

    >>> elu_features(jnp.array([0.0, 2.0]))
    Array([1., 3.], dtype=float32)
    """
    return jax.nn.elu(x) + 1


def linear_step(
    state: LinearState,
    q: Float[Array, "*B N H"],
    k: Float[Array, "*B K H"],
    v: Float[Array, "*B K H"],
    features: Callable[[Array], Array] = elu_features,
) -> tuple[Float[Array, "*B N H"], LinearState]:
    """Decode one position: take its key and value in, and give what its query sees, itself included.

    >>> x = jnp.ones((1, 2))
    >>> y, state = linear_step(LinearState.empty((), 1, 2, 2), x, x, 3 * x)
    >>> y.tolist()
    [[3.0, 3.0]]
    """
    state = state.add(features(k)[..., None, :, :], v[..., None, :, :])
    seen, total = state.attend(features(q)[..., None, :, :])
    return _divide(seen, total)[..., 0, :, :].astype(q.dtype), state


def mix_features(
    q: Float[Array, "*B T N F"],
    k: Float[Array, "*B S K F"],
    v: Float[Array, "*B S K H"],
    mask: Mask,
    scales: Float[Array, "*B S K"] | None = None,
) -> Float[Array, "*B T N H"]:
    """Mix values by products of features, all of them at least 0; the mask's causal, lengths and offset hold.

    Args:
        scales: logarithms of what each key's features are to be multiplied by, of any size; None: all are 0. What they
            are relative to is the largest of the keys that a query sees, and of no other key.
    """
    T, S = q.shape[-3], k.shape[-3]
    if mask.offset is not None or (mask.causal and T != S):
        return _mix_whole(q, k, v, mask, scales)
    if mask.lengths is not None:
        real = (jnp.arange(S) < mask.lengths[..., None])[..., None]
        k = jnp.where(real[..., None], k, 0)
        scales = None if scales is None else jnp.where(real, scales, LOWEST)
    start = LinearState.empty(q.shape[:-3], k.shape[-2], q.shape[-1], v.shape[-1])
    start = jax.tree.map(lambda x: x.astype(at_least_float32(q.dtype)), start)
    if mask.causal:
        return _mix_chunks(q, k, v, scales, start)
    k = k if scales is None else _times(k, scales - scales.max(axis=-2, keepdims=True))
    return _divide(*start.add(k, v).attend(q)).astype(v.dtype)


def _mix_chunks(q: Array, k: Array, v: Array, scales: Array | None, start: LinearState) -> Array:
    size, T = min(_CHUNK, q.shape[-3]), q.shape[-3]
    chunks = [jnp.moveaxis(to_blocks(x, -3, size), -4, 0) for x in (q, k, v)]
    past, top = jnp.tril(jnp.ones((size, size), bool)), None
    if scales is not None:
        chunks.append(jnp.moveaxis(to_blocks(scales, -2, size), -3, 0))
        top = jnp.full_like(scales[..., 0, :], LOWEST)

    @jax.checkpoint
    def chunk(carried: tuple, parts: list) -> tuple[tuple, Array]:
        (state, top), (q, k, v, *scales) = carried, parts
        before, total = state.attend(q)
        weights = jnp.where(past, _weights(q, k), 0)
        if scales:  # each position has its own largest key so far, which no later one changes
            tops = jnp.maximum(jax.lax.cummax(scales[0], axis=scales[0].ndim - 2), top[..., None, :])
            faded = _per_head(top[..., None, :] - tops, q, -1)
            before, total = _times(before, faded), total * jnp.exp(faded)
            beside = jnp.swapaxes(scales[0], -1, -2)[..., None, :] - jnp.swapaxes(tops, -1, -2)[..., None]
            weights = weights * jnp.exp(_per_head(jnp.minimum(beside, 0), q, -3))
            last = tops[..., -1, :]
            state = LinearState(_times(state.values, (top - last)[..., None]), _times(state.features, top - last))
            k, top = _times(k, scales[0] - last[..., None, :]), last
        y = before + _by_heads(weights, v)
        total = total + jnp.moveaxis(weights.sum(axis=-1), -1, -2)
        return (state.add(k, v), top), _divide(y, total).astype(v.dtype)

    out = jax.lax.scan(chunk, (start, top), chunks)[1]
    return from_blocks(jnp.moveaxis(out, 0, -4), -3, T)


def _mix_whole(q: Array, k: Array, v: Array, mask: Mask, scales: Array | None) -> Array:
    """Mix by all T × S products: for the few queries of a step of a cache."""
    seen = mask.materialize(q.shape[-3], k.shape[-3])
    weights = jnp.where(seen, _weights(q, k), 0)
    if scales is not None:
        own = jnp.where(seen, _per_head(jnp.swapaxes(scales, -1, -2)[..., None, :], q, -3), LOWEST)
        weights = weights * jnp.exp(own - own.max(axis=-1, keepdims=True))
    return _divide(_by_heads(weights, v), jnp.moveaxis(weights.sum(axis=-1), -1, -2)).astype(v.dtype)


def _times(x: Array, log: Array) -> Array:
    """Multiply vectors by exp(log)."""
    return x * jnp.exp(log)[..., None]


def _per_head(x: Array, q: Array, axis: int) -> Array:
    """Repeat what each key head has for its query heads."""
    return jnp.repeat(x, q.shape[-2] // x.shape[axis], axis=axis)


def _weights(q: Array, k: Array) -> Array:
    """Return the products of features, [*B, N, T, S]."""
    q = rearrange(q, "... T (K G) F -> ... K G T F", K=k.shape[-2])
    return rearrange(product("...kgtf,...skf->...kgts", q, k), "... K G T S -> ... (K G) T S")


def _by_heads(weights: Array, v: Array) -> Array:
    weights = rearrange(weights, "... (K G) T S -> ... K G T S", K=v.shape[-2])
    return rearrange(jnp.einsum("...kgts,...skh->...tkgh", weights, widen(v)), "... K G H -> ... (K G) H")


def _divide(seen: Array, total: Array) -> Array:
    """Divide by the sum of weights; who sees nothing gets zeros."""
    return jnp.where(total[..., None] > 0, seen / jnp.where(total > 0, total, 1)[..., None], 0)


@frozen
class LinearAttention(AttentionFunction):
    """Attention by products of elu(x) + 1: no approximation of the softmax, but a mechanism of its own.

    >>> q, v = jnp.zeros((2, 1, 1)), jnp.array([[[0.0]], [[2.0]]])
    >>> LinearAttention()(q, q, v, Mask(causal=True))[:, 0, 0]
    Array([0., 1.], dtype=float32)
    """

    name = "linear"
    supports = frozenset({"causal", "lengths", "offset", "cross"})

    def run(self, call: Call) -> Float[Array, "*B T N H"]:
        """Mix by sums over keys, chunk by chunk where causal."""
        return mix_features(elu_features(call.q), elu_features(call.k), call.v, call.mask)
