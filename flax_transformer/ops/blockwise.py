"""Exact attention in memory linear in T and S, forward and backward, on any device.

The softmax is accumulated over blocks of keys (Rabe & Staats 2021, https://arxiv.org/abs/2112.05682), and the backward
pass computes each block of weights again from the saved normaliser (Dao 2023, https://arxiv.org/abs/2307.08691).

Axes as in `attention`; within blocks heads come as K G and before positions.
"""

from functools import partial

import jax
import jax.numpy as jnp
from einops import rearrange
from jaxtyping import Array, Float

from flax_transformer.ops.dropout import Dropout
from flax_transformer.ops.mask import Mask
from flax_transformer.ops.wide import product, wide, widen, zeros

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
) -> Float[Array, "*B T N H"]:
    """Attend block by block; blocks that the mask hides entirely are skipped."""
    T, S, K = q.shape[-3], k.shape[-3], k.shape[-2]
    rows, columns = min(_BLOCK, T), min(_BLOCK, S)
    mask = _fix(mask or Mask(), T, S, rows, columns)
    if bias is not None:
        bias = _pad(_pad(bias.astype(wide(q.dtype)), -2, rows), -1, columns)
    q = rearrange(_pad(q, -3, rows), "... (i t) (K G) H -> i ... K G t H", t=rows, K=K)
    k, v = (rearrange(_pad(x, -3, columns), "... (j s) K H -> j ... K s H", s=columns) for x in (k, v))
    out = _blockwise(scale, q, k, v, mask, bias)
    return rearrange(out, "i ... K G t H -> ... (i t) (K G) H")[..., :T, :, :]


def _pad(x, axis, block):
    """Fill up an axis to whole blocks with zeros; an axis of 1 broadcasts and stays."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % block if x.shape[axis] > 1 else 0)
    return jnp.pad(x, widths)


def _fix(mask, T, S, rows, columns):
    """Make what depends on T and S explicit, so that the mask means the same for padded arrays and for a block."""
    segments, dense = mask.segments, mask.dense
    return Mask(
        causal=mask.causal,
        window=mask.window,
        lengths=jnp.minimum(S, S if mask.lengths is None else mask.lengths),
        segments=None if segments is None else (_pad(segments[0], -1, rows), _pad(segments[1], -1, columns)),
        dense=None if dense is None else _pad(_pad(dense, -2, rows), -1, columns),
        offset=jnp.asarray(S - T if mask.offset is None else mask.offset),
    )


def cut_block(x, axis, index, block):
    """Take one block of an axis, counted from the end; an axis of 1 broadcasts and stays."""
    return x if x.shape[axis] == 1 else jax.lax.dynamic_slice_in_dim(x, index * block, block, x.ndim + axis)


def _part(mask, i, j, rows, columns):
    """Give the mask of query block i against key block j."""
    segments = mask.segments
    if segments is not None:
        segments = cut_block(segments[0], -1, i, rows), cut_block(segments[1], -1, j, columns)
    return Mask(
        causal=mask.causal,
        window=mask.window,
        lengths=mask.lengths - j * columns,
        segments=segments,
        dense=None if mask.dense is None else cut_block(cut_block(mask.dense, -2, i, rows), -1, j, columns),
        offset=mask.offset + i * rows - j * columns,
    )


def _reaches(part, rows, columns):
    """Say whether any query of the block may see any of its keys, by position and length alone."""
    reach = jnp.any(part.lengths > 0)
    left, right = (None, None) if part.window is None else part.window
    if part.causal:
        right = 0
    if right is not None:
        reach &= jnp.any(part.offset + rows - 1 + right >= 0)
    if left is not None:
        reach &= jnp.any(part.offset - left < columns)
    return reach


def block_scores(scale, q, k, part, bias, i, j):
    """Compute the masked scores, float32 or more, of one block."""
    rows, columns = q.shape[-2], k.shape[-2]
    scores = product("...kgth,...ksh->...kgts", q, k) * scale
    flat = rearrange(scores, "... K G t s -> ... (K G) t s")
    if bias is not None:
        flat = flat + cut_block(cut_block(bias, -2, i, rows), -1, j, columns)
    flat = jnp.where(part.materialize(rows, columns), flat, -jnp.inf)
    return flat.reshape(scores.shape)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _blockwise(scale, q, k, v, mask, bias):
    return _forward(scale, q, k, v, mask, bias)[0]


def _forward(scale, q, k, v, mask, bias):
    rows, columns = q.shape[-2], k.shape[-2]

    def query_block(i, q_i):
        def key_block(carry, block):
            j, k_j, v_j = block
            part = _part(mask, i, j, rows, columns)

            def attend(carry):
                top, total, out = carry
                scores = block_scores(scale, q_i, k_j, part, bias, i, j)
                new_top = jnp.maximum(top, scores.max(-1, keepdims=True))
                # Nothing seen so far is a top of -inf; 0 in its place keeps exp(-inf - top) at 0 instead of NaN.
                base = jnp.where(jnp.isfinite(new_top), new_top, 0)
                shares, fade = jnp.exp(scores - base), jnp.exp(top - base)
                more = product("...kgts,...ksh->...kgth", shares.astype(v_j.dtype), v_j)
                return new_top, total * fade + shares.sum(-1, keepdims=True), out * fade + more

            return jax.lax.cond(_reaches(part, rows, columns), attend, lambda carry: carry, carry), None

        column = zeros(q_i[..., :1])
        start = column - jnp.inf, column, zeros(q_i)
        (top, total, out), _ = jax.lax.scan(key_block, start, (jnp.arange(len(k)), k, v))
        empty = total == 0
        # A normaliser of +inf makes every weight of an empty row exp(-inf) = 0 in the backward pass.
        norm = jnp.where(empty, jnp.inf, top + jnp.log(jnp.where(empty, 1, total)))
        return (out / jnp.where(empty, 1, total)).astype(q.dtype), norm

    out, norm = jax.lax.map(lambda block: query_block(*block), (jnp.arange(len(q)), q))
    return out, (q, k, v, mask, bias, out, norm)


def _backward(scale, saved, pull):
    q, k, v, mask, bias, out, norm = saved
    rows, columns = q.shape[-2], k.shape[-2]
    drift = jnp.sum(widen(pull) * out, axis=-1, keepdims=True)

    def key_block(carry, block):
        j, k_j, v_j = block

        def query_block(carry, block):
            i, q_i, pull_i, norm_i, drift_i, by_q_i = block
            part = _part(mask, i, j, rows, columns)

            def attend(carry, by_q_i):
                by_k, by_v, by_bias = carry
                weights = jnp.exp(block_scores(scale, q_i, k_j, part, bias, i, j) - norm_i)
                by_v += product("...kgts,...kgth->...ksh", weights.astype(v.dtype), pull_i)
                by_scores = weights * (product("...kgth,...ksh->...kgts", pull_i, v_j) - drift_i)
                by_bias = None if bias is None else add_block(by_bias, by_scores, i, j)
                by_scores = (by_scores * scale).astype(q.dtype)
                by_k += product("...kgts,...kgth->...ksh", by_scores, q_i)
                return (by_k, by_v, by_bias), by_q_i + product("...kgts,...ksh->...kgth", by_scores, k_j)

            return jax.lax.cond(_reaches(part, rows, columns), attend, lambda *skip: skip, carry, by_q_i)

        by_q, by_bias = carry
        start = zeros(k_j), zeros(v_j), by_bias
        (by_k, by_v, by_bias), by_q = jax.lax.scan(query_block, start, (jnp.arange(len(q)), q, pull, norm, drift, by_q))
        return (by_q, by_bias), (by_k.astype(k.dtype), by_v.astype(v.dtype))

    start = zeros(q), None if bias is None else zeros(bias)
    (by_q, by_bias), (by_k, by_v) = jax.lax.scan(key_block, start, (jnp.arange(len(k)), k, v))
    return by_q.astype(q.dtype), by_k, by_v, None, by_bias


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


_blockwise.defvjp(_forward, _backward)
