"""Exact attention in memory linear in T and S, forward and backward, on any device.

The softmax is accumulated over blocks of keys (Rabe & Staats 2021, https://arxiv.org/abs/2112.05682), and the backward
pass computes each block of weights again from the saved normaliser (Dao 2023, https://arxiv.org/abs/2307.08691).

Axes as in `attention`; within blocks heads come as K G and before positions.
"""

from functools import partial

import jax
import jax.numpy as jnp
from einops import rearrange
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from flax_transformer.ops.dropout import Dropout
from flax_transformer.ops.float32 import product, wide, widen, zeros
from flax_transformer.ops.linear_map import in_one_piece, linear_map
from flax_transformer.ops.mask import Mask
from flax_transformer.ops.remat_name import AGAIN, attended
from flax_transformer.ops.score_block import bands, cut_block, fix_mask, pad_block, part_of, reaches

_BLOCK = 512


def blockwise_serves(q, k, v, mask, bias, dropout) -> str | None:
    """Serve every call without dropout."""
    return None if dropout is None or dropout.rate == 0 else "it has no dropout of attention weights"


def blockwise_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K H"],
    mask: Mask | None,
    bias: Float[Array, "*#B #N #T #S"] | None,
    scale: float,
    dropout: Dropout | None = None,
    *,
    block: int | None = None,
) -> Float[Array, "*B T N H"]:
    """Attend block by block; what the mask hides entirely is skipped, and of what lies beyond a window nothing is done.

    Args:
      block: positions in a block, of queries and of keys, at most.
    """
    T, S, K = q.shape[-3], k.shape[-3], k.shape[-2]
    rows, columns = (min(_BLOCK, block or _BLOCK, length) for length in (T, S))
    near = bands(mask, T, S, rows, columns)
    mask = fix_mask(mask or Mask(), T, S, rows, columns)
    if bias is not None:
        bias = pad_block(pad_block(bias.astype(wide(q.dtype)), -2, rows), -1, columns)
    q = rearrange(pad_block(q, -3, rows), "... (i t) (K G) H -> i ... K G t H", t=rows, K=K)
    k, v = (rearrange(pad_block(x, -3, columns), "... (j s) K H -> j ... K s H", s=columns) for x in (k, v))
    out = _blockwise(scale, near, q, k, v, mask, bias)
    return rearrange(out, "i ... K G t H -> ... (i t) (K G) H")[..., :T, :, :]


def block_scores(scale, q, k, part, bias, i, j):
    """Compute the masked scores, float32 or more, of one block."""
    rows, columns = q.shape[-2], k.shape[-2]
    scores = product("...kgth,...ksh->...kgts", q, k) * scale
    flat = rearrange(scores, "... K G t s -> ... (K G) t s")
    if bias is not None:
        flat = flat + cut_block(cut_block(bias, -2, i, rows), -1, j, columns)
    flat = jnp.where(part.materialize(rows, columns), flat, -jnp.inf)
    return flat.reshape(scores.shape)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _blockwise(scale, near, q, k, v, mask, bias):
    # As in the rule below: within `jit`, `vmap` takes the results of both to have their batch axis in one place.
    return in_one_piece(_forward, (q, k, v, mask, bias), scale=scale, near=near)[0]


@partial(_blockwise.defjvp, symbolic_zeros=True)
def _derive(scale, near, operands, slopes):
    static = {"scale": scale, "near": near}
    out, norm = attended(in_one_piece(_forward, operands, **static))
    q, k, v, _, bias = (None if isinstance(slope, SymbolicZero) else slope for slope in slopes)
    return out, linear_map(_tangent, _backward, (*operands, out, norm), (q, k, v, bias), **static)


def _forward(operands, *, scale, near):
    q, k, v, mask, bias = operands
    rows, columns = q.shape[-2], k.shape[-2]

    def query_block(i, q_i):
        def key_block(carry, block):
            j, k_j, v_j = block
            part = part_of(mask, i, j, rows, columns)

            def attend(carry):
                top, total, out = carry
                scores = block_scores(scale, q_i, k_j, part, bias, i, j)
                new_top = jnp.maximum(top, scores.max(-1, keepdims=True))
                # Nothing seen so far is a top of -inf; 0 in its place keeps exp(-inf - top) at 0 instead of NaN.
                base = jnp.where(jnp.isfinite(new_top), new_top, 0)
                shares, fade = jnp.exp(scores - base), jnp.exp(top - base)
                more = product("...kgts,...ksh->...kgth", shares.astype(v_j.dtype), v_j)
                return new_top, total * fade + shares.sum(-1, keepdims=True), out * fade + more

            return jax.lax.cond(reaches(part, rows, columns), attend, lambda carry: carry, carry), None

        column = zeros(q_i[..., :1])
        start = column - jnp.inf, column, zeros(q_i)
        (top, total, out), _ = jax.lax.scan(key_block, start, near[0].cut(i, k, v))
        empty = total == 0
        # A normaliser of +inf makes every weight of an empty row exp(-inf) = 0 in the backward pass.
        norm = jnp.where(empty, jnp.inf, top + jnp.log(jnp.where(empty, 1, total)))
        return (out / jnp.where(empty, 1, total)).astype(q.dtype), norm

    return jax.lax.map(lambda block: query_block(*block), (jnp.arange(len(q)), q))


def _tangent(saved, slopes, *, scale, near):
    q, k, v, mask, bias, out, norm = saved
    *slopes, to_bias = slopes
    to_q, to_k, to_v = (jnp.zeros_like(x) if to is None else to for x, to in zip((q, k, v), slopes, strict=True))
    rows, columns = q.shape[-2], k.shape[-2]

    def query_block(block):
        i, q_i, to_q_i, out_i, norm_i = block

        def key_block(carry, block):
            j, k_j, v_j, to_k_j, to_v_j = block
            part = part_of(mask, i, j, rows, columns)

            def attend(carry):
                total, to_out = carry
                weights = jnp.exp(block_scores(scale, q_i, k_j, part, bias, i, j) - norm_i)
                to_scores = product("...kgth,...ksh->...kgts", to_q_i, k_j) * scale
                to_scores += product("...kgth,...ksh->...kgts", q_i, to_k_j) * scale
                if to_bias is not None:
                    flat = rearrange(to_scores, "... K G t s -> ... (K G) t s")
                    flat += cut_block(cut_block(to_bias, -2, i, rows), -1, j, columns)
                    to_scores = flat.reshape(to_scores.shape)
                to_weights = weights * to_scores
                to_out += product("...kgts,...ksh->...kgth", to_weights.astype(v.dtype), v_j)
                to_out += product("...kgts,...ksh->...kgth", weights.astype(v.dtype), to_v_j)
                return total + to_weights.sum(-1, keepdims=True), to_out

            return jax.lax.cond(reaches(part, rows, columns), attend, lambda carry: carry, carry), None

        start = zeros(norm_i), zeros(q_i)
        (total, to_out), _ = jax.lax.scan(key_block, start, near[0].cut(i, k, v, to_k, to_v))
        return (to_out - total * out_i).astype(q.dtype)

    return jax.lax.map(query_block, (jnp.arange(len(q)), q, to_q, out, norm))


def _backward(saved, pull, *, scale, near):
    q, k, v, mask, bias, out, norm = saved
    rows, columns = q.shape[-2], k.shape[-2]
    drift = jnp.sum(widen(pull) * out, axis=-1, keepdims=True)

    def key_block(carry, block):
        j, k_j, v_j = block

        def query_block(carry, block):
            i, q_i, pull_i, norm_i, drift_i, by_q_i = block
            part = part_of(mask, i, j, rows, columns)

            def attend(carry, by_q_i):
                by_k, by_v, by_bias = carry
                with jax.named_scope(AGAIN):
                    weights = jnp.exp(block_scores(scale, q_i, k_j, part, bias, i, j) - norm_i)
                by_v += product("...kgts,...kgth->...ksh", weights.astype(v.dtype), pull_i)
                by_scores = weights * (product("...kgth,...ksh->...kgts", pull_i, v_j) - drift_i)
                by_bias = None if bias is None else add_block(by_bias, by_scores, i, j)
                by_scores = (by_scores * scale).astype(q.dtype)
                by_k += product("...kgts,...kgth->...ksh", by_scores, q_i)
                return (by_k, by_v, by_bias), by_q_i + product("...kgts,...ksh->...kgth", by_scores, k_j)

            return jax.lax.cond(reaches(part, rows, columns), attend, lambda *skip: skip, carry, by_q_i)

        by_q, by_bias = carry
        start = zeros(k_j), zeros(v_j), by_bias
        visited = near[1].cut(j, q, pull, norm, drift, by_q)
        (by_k, by_v, by_bias), by_q_near = jax.lax.scan(query_block, start, visited)
        return (near[1].put(j, by_q, by_q_near), by_bias), (by_k.astype(k.dtype), by_v.astype(v.dtype))

    start = zeros(q), None if bias is None else zeros(bias)
    (by_q, by_bias), (by_k, by_v) = jax.lax.scan(key_block, start, (jnp.arange(len(k)), k, v))
    return by_q.astype(q.dtype), by_k, by_v, by_bias


def add_block(by_bias, by_scores, i, j):
    """Add a block of score gradients to the bias gradient, summed over the axes that the bias broadcasts."""
    block = rearrange(by_scores, "... K G t s -> ... (K G) t s")
    block = block.sum(range(block.ndim - by_bias.ndim))
    wide = tuple(a for a in range(by_bias.ndim) if by_bias.shape[a] == 1)
    block = block.sum(wide, keepdims=True)
    start = [0] * by_bias.ndim
    for axis, index in ((-2, i), (-1, j)):
        if by_bias.shape[axis] > 1:
            start[axis] = index * by_scores.shape[axis]
    old = jax.lax.dynamic_slice(by_bias, start, block.shape)
    return jax.lax.dynamic_update_slice(by_bias, old + block, start)
