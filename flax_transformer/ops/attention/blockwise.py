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

from flax_transformer.frozen import frozen
from flax_transformer.ops.attention.call import FEATURES, Call
from flax_transformer.ops.attention.function import AttentionFunction
from flax_transformer.ops.attention.online_softmax import accumulate, accumulate_gradients, add_block, begin, finish
from flax_transformer.ops.attention.score_block import bands, cut_block, fix_mask, pad_block, part_of, reaches
from flax_transformer.ops.float32 import at_least_float32, product, widen, zeros
from flax_transformer.ops.linear_map import in_one_piece, linear_map
from flax_transformer.ops.remat import AGAIN, attended

_BLOCK = 512


@frozen
class BlockwiseAttention(AttentionFunction):
    """Softmax attention block by block; what the mask hides entirely is skipped, and of what lies beyond a window
    nothing is done."""

    block: int = 512
    """Positions in a block, of queries and of keys, at most."""

    name = "blockwise"
    supports = frozenset(FEATURES) - {"dropout", "rounded"}

    def run(self, call: Call) -> Float[Array, "*B T N H"]:
        """Attend."""
        (T, S), K, bias = call.lengths, call.k.shape[-2], call.bias
        rows, columns = (min(_BLOCK, self.block, length) for length in (T, S))
        visits = bands(call.mask, T, S, rows, columns)
        mask = fix_mask(call.mask, T, S, rows, columns)
        if bias is not None:
            bias = pad_block(pad_block(bias.astype(at_least_float32(call.q.dtype)), -2, rows), -1, columns)
        q = rearrange(pad_block(call.q, -3, rows), "... (i t) (K G) H -> i ... K G t H", t=rows, K=K)
        keys = (
            rearrange(pad_block(x, -3, columns), "... (j s) K H -> j ... K s H", s=columns) for x in (call.k, call.v)
        )
        out = _blockwise(call.resolved_scale, visits, q, *keys, mask, bias)
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
def _blockwise(scale, visits, q, k, v, mask, bias):
    # As in the rule below: within `jit`, `vmap` takes the results of both to have their batch axis in one place.
    return in_one_piece(_forward, (q, k, v, mask, bias), scale=scale, visits=visits)[0]


@partial(_blockwise.defjvp, symbolic_zeros=True)
def _derive(scale, visits, operands, tangents):
    static = {"scale": scale, "visits": visits}
    out, lse = attended(in_one_piece(_forward, operands, **static))
    q, k, v, _, bias = (None if isinstance(tangent, SymbolicZero) else tangent for tangent in tangents)
    return out, linear_map(_tangent, _backward, (*operands, out, lse), (q, k, v, bias), **static)


def _forward(operands, *, scale, visits):
    q, k, v, mask, bias = operands
    rows, columns = q.shape[-2], k.shape[-2]

    def query_block(i, q_i):
        def key_block(carry, block):
            j, k_j, v_j = block
            part = part_of(mask, i, j, rows, columns)

            def attend(carry):
                return accumulate(carry, block_scores(scale, q_i, k_j, part, bias, i, j), v_j)

            return jax.lax.cond(reaches(part, rows, columns), attend, lambda carry: carry, carry), None

        state, _ = jax.lax.scan(key_block, begin(q_i), visits[0].cut(i, k, v))
        return finish(state, q.dtype)

    return jax.lax.map(lambda block: query_block(*block), (jnp.arange(len(q)), q))


def _tangent(saved, tangents, *, scale, visits):
    q, k, v, mask, bias, out, lse = saved
    *tangents, bias_dot = tangents
    q_dot, k_dot, v_dot = (jnp.zeros_like(x) if to is None else to for x, to in zip((q, k, v), tangents, strict=True))
    rows, columns = q.shape[-2], k.shape[-2]

    def query_block(block):
        i, q_i, q_dot_i, out_i, lse_i = block

        def key_block(carry, block):
            j, k_j, v_j, k_dot_j, v_dot_j = block
            part = part_of(mask, i, j, rows, columns)

            def attend(carry):
                total, out_dot = carry
                weights = jnp.exp(block_scores(scale, q_i, k_j, part, bias, i, j) - lse_i)
                scores_dot = product("...kgth,...ksh->...kgts", q_dot_i, k_j) * scale
                scores_dot += product("...kgth,...ksh->...kgts", q_i, k_dot_j) * scale
                if bias_dot is not None:
                    flat = rearrange(scores_dot, "... K G t s -> ... (K G) t s")
                    flat += cut_block(cut_block(bias_dot, -2, i, rows), -1, j, columns)
                    scores_dot = flat.reshape(scores_dot.shape)
                weights_dot = weights * scores_dot
                out_dot += product("...kgts,...ksh->...kgth", weights_dot.astype(v.dtype), v_j)
                out_dot += product("...kgts,...ksh->...kgth", weights.astype(v.dtype), v_dot_j)
                return total + weights_dot.sum(-1, keepdims=True), out_dot

            return jax.lax.cond(reaches(part, rows, columns), attend, lambda carry: carry, carry), None

        start = zeros(lse_i), zeros(q_i)
        (total, out_dot), _ = jax.lax.scan(key_block, start, visits[0].cut(i, k, v, k_dot, v_dot))
        return (out_dot - total * out_i).astype(q.dtype)

    return jax.lax.map(query_block, (jnp.arange(len(q)), q, q_dot, out, lse))


def _backward(saved, dout, *, scale, visits):
    q, k, v, mask, bias, out, lse = saved
    rows, columns = q.shape[-2], k.shape[-2]
    delta = jnp.sum(widen(dout) * out, axis=-1, keepdims=True)

    def key_block(carry, block):
        j, k_j, v_j = block

        def query_block(carry, block):
            i, q_i, dout_i, lse_i, delta_i, dq_i = block
            part = part_of(mask, i, j, rows, columns)

            def attend(carry, dq_i):
                dk, dv, dbias = carry
                with jax.named_scope(AGAIN):
                    weights = jnp.exp(block_scores(scale, q_i, k_j, part, bias, i, j) - lse_i)
                block = q_i, k_j, v_j, dout_i, delta_i
                (dq_i, dk, dv), dscores = accumulate_gradients((dq_i, dk, dv), weights, block, scale)
                return (dk, dv, None if bias is None else add_block(dbias, dscores, i, j)), dq_i

            return jax.lax.cond(reaches(part, rows, columns), attend, lambda *skip: skip, carry, dq_i)

        dq, dbias = carry
        start = zeros(k_j), zeros(v_j), dbias
        visited = visits[1].cut(j, q, dout, lse, delta, dq)
        (dk, dv, dbias), dq_visited = jax.lax.scan(query_block, start, visited)
        return (visits[1].put(j, dq, dq_visited), dbias), (dk.astype(k.dtype), dv.astype(v.dtype))

    start = zeros(q), None if bias is None else zeros(bias)
    (dq, dbias), (dk, dv) = jax.lax.scan(key_block, start, (jnp.arange(len(k)), k, v))
    return dq.astype(q.dtype), dk, dv, dbias
