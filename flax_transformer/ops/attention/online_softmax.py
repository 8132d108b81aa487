"""The recurrence of flash attention over blocks of keys, and its gradient, for one block of queries and one of keys.

With s the scores of a block (Milakov & Gimelshein 2018, https://arxiv.org/abs/1805.02867; Dao 2023,
https://arxiv.org/abs/2307.08691):

    m' = max(m, max s),  alpha = exp(m - m'),  p = exp(s - m'),  l' = alpha l + sum p,  out' = alpha out + p v

At the end out / l is the output, and lse = m + log l is all that the backward pass needs to compute p again.

Axes as in `attention`; within blocks heads come as K G and before positions, t queries and s keys.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from einops import rearrange
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from flax_transformer.ops.float32 import product, zeros

State = tuple[Float[Array, "*B K G t 1"], Float[Array, "*B K G t 1"], Float[Array, "*B K G t H"]]
"""m, the sum l, and out, in float32 or more."""
Drop = Callable[[Float[Array, "*B K G t s"]], Float[Array, "*B K G t s"]]


def begin(q: Float[Array, "*B K G t H"]) -> State:
    """Return the state before any key."""
    column = zeros(q[..., :1])
    return column - jnp.inf, column, zeros(q)


def accumulate(
    state: State, scores: Float[Array, "*B K G t s"], v: Float[Array, "*B K s H"], drop: Drop | None = None
) -> State:
    """Add a block of keys; `drop` sets some weights to 0 and scales the others."""
    m, total, out = state
    new_m = jnp.maximum(m, scores.max(-1, keepdims=True))
    # Before any visible key m is -inf; 0 in its place keeps exp(-inf - m) at 0 instead of NaN.
    finite_m = jnp.where(jnp.isfinite(new_m), new_m, 0)
    p, alpha = jnp.exp(scores - finite_m), jnp.exp(m - finite_m)
    dropped = p if drop is None else drop(p)
    more = product("...kgts,...ksh->...kgth", dropped.astype(v.dtype), v)
    return new_m, total * alpha + p.sum(-1, keepdims=True), out * alpha + more


def finish(state: State, dtype: DTypeLike) -> tuple[Float[Array, "*B K G t H"], Float[Array, "*B K G t 1"]]:
    """Return the output, 0 for queries that see no key, and lse, the logarithm of the softmax's denominator."""
    m, total, out = state
    empty = total == 0
    # An lse of +inf makes every weight of an empty row exp(-inf) = 0 in the backward pass.
    lse = jnp.where(empty, jnp.inf, m + jnp.log(jnp.where(empty, 1, total)))
    return (out / jnp.where(empty, 1, total)).astype(dtype), lse


def accumulate_gradients(
    gradients: tuple[Array, Array, Array],
    weights: Float[Array, "*B K G t s"],
    block: tuple[Array, Array, Array, Array, Array],
    scale: float,
    drop: Drop | None = None,
) -> tuple[tuple[Array, Array, Array], Float[Array, "*B K G t s"]]:
    """Add what a block gives to the gradients by its queries, keys and values.

    Args:
      gradients: dq, dk and dv of the block so far, in float32 or more.
      weights: exp(scores - lse), computed again.
      block: q, k, v, the gradient by the output, and delta, the sum of that times the output over H.

    Returns:
      The gradients, and those by the scores, before the scale.
    """
    (dq, dk, dv), (q, k, v, dout, delta) = gradients, block
    drop = drop or (lambda weights: weights)
    dv += product("...kgts,...kgth->...ksh", drop(weights).astype(v.dtype), dout)
    dscores = weights * (drop(product("...kgth,...ksh->...kgts", dout, v)) - delta)
    ds = (dscores * scale).astype(q.dtype)
    dk += product("...kgts,...kgth->...ksh", ds, q)
    return (dq + product("...kgts,...ksh->...kgth", ds, k), dk, dv), dscores


def add_block(dbias: Float[Array, "..."], dscores: Float[Array, "*B K G t s"], i: Array, j: Array) -> Array:
    """Add the gradient of block (i, j) of the scores to that of the bias, summed over the axes that it broadcasts."""
    block = rearrange(dscores, "... K G t s -> ... (K G) t s")
    block = block.sum(range(block.ndim - dbias.ndim))
    block = block.sum(tuple(a for a in range(dbias.ndim) if dbias.shape[a] == 1), keepdims=True)
    start = [0] * dbias.ndim
    for axis, index in ((-2, i), (-1, j)):
        if dbias.shape[axis] > 1:
            start[axis] = index * dscores.shape[axis]
    old = jax.lax.dynamic_slice(dbias, start, block.shape)
    return jax.lax.dynamic_update_slice(dbias, old + block, start)
