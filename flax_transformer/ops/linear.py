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
from flax_transformer.ops.block import pad_block
from flax_transformer.ops.mask import Mask
from flax_transformer.ops.variant import Variant
from flax_transformer.ops.wide import product, wide, widen

_CHUNK = 128


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

    def look(self, q: Float[Array, "*B T N F"]) -> tuple[Float[Array, "*B T N H"], Float[Array, "*B T N"]]:
        """Give what features of queries see, and by how much to divide it."""
        q = rearrange(widen(q), "... T (K G) F -> ... T K G F", K=self.values.shape[-3])
        seen = jnp.einsum("...tkgf,...kfh->...tkgh", q, self.values)
        total = jnp.einsum("...tkgf,...kf->...tkg", q, self.features)
        return rearrange(seen, "... K G H -> ... (K G) H"), rearrange(total, "... K G -> ... (K G)")


def elu_features(x: Float[Array, "*B H"]) -> Float[Array, "*B H"]:
    """Give elu(x) + 1, above 0 everywhere.

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
    seen, total = state.look(features(q)[..., None, :, :])
    return _divide(seen, total)[..., 0, :, :].astype(q.dtype), state


def mix_features(
    q: Float[Array, "*B T N F"], k: Float[Array, "*B S K F"], v: Float[Array, "*B S K H"], mask: Mask
) -> Float[Array, "*B T N H"]:
    """Mix values by products of features, all of them at least 0; the mask's causal, lengths and offset hold."""
    T, S = q.shape[-3], k.shape[-3]
    if mask.offset is not None or (mask.causal and T != S):
        return _mix_whole(q, k, v, mask)
    if mask.lengths is not None:
        k = jnp.where((jnp.arange(S) < mask.lengths[..., None])[..., None, None], k, 0)
    start = LinearState.empty(q.shape[:-3], k.shape[-2], q.shape[-1], v.shape[-1])
    start = jax.tree.map(lambda x: x.astype(wide(q.dtype)), start)
    if mask.causal:
        return _mix_chunks(q, k, v, start)
    return _divide(*start.add(k, v).look(q)).astype(v.dtype)


def _mix_chunks(q: Array, k: Array, v: Array, start: LinearState) -> Array:
    size, T = min(_CHUNK, q.shape[-3]), q.shape[-3]
    chunks = [rearrange(pad_block(x, -3, size), "... (I C) N F -> I ... C N F", C=size) for x in (q, k, v)]
    past = jnp.tril(jnp.ones((size, size), bool))

    @jax.checkpoint
    def chunk(state: LinearState, qkv: tuple) -> tuple[LinearState, Array]:
        q, k, v = qkv
        before, total = state.look(q)
        weights = jnp.where(past, _weights(q, k), 0)
        y = before + _by_heads(weights, v)
        total = total + jnp.moveaxis(weights.sum(axis=-1), -1, -2)
        return state.add(k, v), _divide(y, total).astype(v.dtype)

    out = jax.lax.scan(chunk, start, tuple(chunks))[1]
    return rearrange(out, "I ... C N H -> ... (I C) N H")[..., :T, :, :]


def _mix_whole(q: Array, k: Array, v: Array, mask: Mask) -> Array:
    """Mix by all T × S products: for the few queries of a step of a cache."""
    weights = jnp.where(mask.materialize(q.shape[-3], k.shape[-3]), _weights(q, k), 0)
    return _divide(_by_heads(weights, v), jnp.moveaxis(weights.sum(axis=-1), -1, -2)).astype(v.dtype)


def _weights(q: Array, k: Array) -> Array:
    """Give the products of features, [*B, N, T, S]."""
    q = rearrange(q, "... T (K G) F -> ... K G T F", K=k.shape[-2])
    return rearrange(product("...kgtf,...skf->...kgts", q, k), "... K G T S -> ... (K G) T S")


def _by_heads(weights: Array, v: Array) -> Array:
    weights = rearrange(weights, "... (K G) T S -> ... K G T S", K=v.shape[-2])
    return rearrange(jnp.einsum("...kgts,...skh->...tkgh", weights, widen(v)), "... K G H -> ... (K G) H")


def _divide(seen: Array, total: Array) -> Array:
    """Divide by the sum of weights; who sees nothing gets zeros."""
    return jnp.where(total[..., None] > 0, seen / jnp.where(total > 0, total, 1)[..., None], 0)


@frozen
class LinearAttention(Variant):
    """Attention by products of elu(x) + 1: no approximation of the softmax, but a mechanism of its own.

    >>> q, v = jnp.zeros((2, 1, 1)), jnp.array([[[0.0]], [[2.0]]])
    >>> LinearAttention()(q, q, v, Mask(causal=True))[:, 0, 0]
    Array([0., 1.], dtype=float32)
    """

    name = "linear"
    able = frozenset({"causal", "lengths", "offset", "cross"})

    def mix(self, q: Array, k: Array, v: Array, mask: Mask, bias: None, scale: float, dropout: None) -> Array:
        """Mix by sums over keys, chunk by chunk where causal."""
        return mix_features(elu_features(q), elu_features(k), v, mask)
