"""What one device of the ring does: it scores its queries against the keys that pass by, and sends these on.

Axes as in `attention`; within blocks heads come as K G and before positions. x are the operands as the device has them.
All is for the inside of a `jax.shard_map` over the mesh axes that split the sequence.
"""

import jax
import jax.numpy as jnp
from einops import rearrange
from jaxtyping import Array

from flax_transformer.ops.blockwise import add_block
from flax_transformer.ops.float32 import product, zeros
from flax_transformer.ops.remat_name import AGAIN
from flax_transformer.ops.ring_block import RingSpec, dropper, masked_scores, reaches, spot_of


def _query_blocks(plan, x, name):
    return rearrange(x[name], "... (i t) (K G) H -> i ... K G t H", t=plan.rows, K=x["k"].shape[-2])


def _keys(plan, x):
    """Return what goes round."""
    keys = {name: rearrange(x[name], "... (j s) K H -> j ... K s H", s=plan.columns) for name in ("k", "v")}
    return keys | ({"segments": x["key_segments"]} if "key_segments" in x else {})


def _pass_on(plan, x):
    hops = [(rank, (rank + 1) % plan.ranks) for rank in range(plan.ranks)]
    return jax.tree.map(lambda leaf: jax.lax.ppermute(leaf, plan.axes, hops), x)


def _go_round(plan, visit, state, keys):
    """Run `state = visit(state, keys, source)` for the keys of every rank, as they pass by, its own first."""
    rank = jax.lax.axis_index(plan.axes)

    def hop(carry, number):
        state, keys = carry
        # Sent before they are used: neither waits for the other.
        following = _pass_on(plan, keys)
        return (visit(state, keys, (rank - number) % plan.ranks), following), None

    (state, keys), _ = jax.lax.scan(hop, (state, keys), jnp.arange(plan.ranks - 1))
    return visit(state, keys, (rank + 1) % plan.ranks)


def attend(plan: RingSpec, x: dict[str, Array]) -> dict[str, Array]:
    """Compute `out` and `norm`, the logarithm of the softmax's denominator, of the device's queries."""
    rank, q = jax.lax.axis_index(plan.axes), _query_blocks(plan, x, "q")

    def visit(state, keys, source):
        def query_block(block):
            i, q_i, state = block

            def key_block(state, block):
                j, k_j, v_j = block
                spot = spot_of(plan, rank, source, i, j)

                def attend(state):
                    top, total, out = state
                    scores = masked_scores(plan, x, keys.get("segments"), q_i, k_j, spot)
                    new_top = jnp.maximum(top, scores.max(-1, keepdims=True))
                    # Nothing seen so far is a top of -inf; 0 in its place keeps exp(-inf - top) at 0 instead of NaN.
                    base = jnp.where(jnp.isfinite(new_top), new_top, 0)
                    shares, fade = jnp.exp(scores - base), jnp.exp(top - base)
                    kept = dropper(plan, x, spot)(shares).astype(v_j.dtype)
                    more = product("...kgts,...ksh->...kgth", kept, v_j)
                    return new_top, total * fade + shares.sum(-1, keepdims=True), out * fade + more

                return jax.lax.cond(reaches(plan, x["limits"], spot), attend, lambda state: state, state), None

            return jax.lax.scan(key_block, state, (jnp.arange(len(keys["k"])), keys["k"], keys["v"]))[0]

        return jax.lax.map(query_block, (jnp.arange(len(q)), q, state))

    column = zeros(q[..., :1])
    start = column - jnp.inf, column, zeros(q)
    top, total, out = _go_round(plan, visit, start, _keys(plan, x))
    empty = total == 0
    # A normaliser of +inf makes every weight of an empty row exp(-inf) = 0 in the backward pass.
    norm = jnp.where(empty, jnp.inf, top + jnp.log(jnp.where(empty, 1, total)))
    out = (out / jnp.where(empty, 1, total)).astype(q.dtype)
    flat = lambda x: rearrange(x, "i ... K G t H -> ... (i t) (K G) H")  # noqa: E731
    return {"out": flat(out), "norm": flat(norm)}


def attend_back(plan: RingSpec, x: dict[str, Array]) -> dict[str, Array]:
    """Compute the gradients by `q`, `k`, `v` and `bias`, as far as the device has them.

    Args:
        x: also has `pull`, the gradient by `out`, `norm`, and `drift`, the sum over H of pull times out.
    """
    queries = [_query_blocks(plan, x, name) for name in ("q", "pull", "norm", "drift")]
    rank, numbers = jax.lax.axis_index(plan.axes), jnp.arange(len(queries[0]))

    def visit(state, keys, source):
        by_q, by_bias, by_keys = state
        arriving = _pass_on(plan, by_keys)

        def key_block(carry, block):
            j, k_j, v_j = block

            def query_block(carry, block):
                i, q_i, pull_i, norm_i, drift_i, by_q_i = block
                spot = spot_of(plan, rank, source, i, j)

                def attend(carry, by_q_i):
                    by_k, by_v, by_bias = carry
                    with jax.named_scope(AGAIN):
                        weights = jnp.exp(masked_scores(plan, x, keys.get("segments"), q_i, k_j, spot) - norm_i)
                    drop = dropper(plan, x, spot)
                    by_v += product("...kgts,...kgth->...ksh", drop(weights).astype(v_j.dtype), pull_i)
                    by_scores = weights * (drop(product("...kgth,...ksh->...kgts", pull_i, v_j)) - drift_i)
                    by_bias = None if by_bias is None else add_block(by_bias, by_scores, i, spot.column // plan.columns)
                    by_scores = (by_scores * plan.scale).astype(q_i.dtype)
                    by_k += product("...kgts,...kgth->...ksh", by_scores, q_i)
                    return (by_k, by_v, by_bias), by_q_i + product("...kgts,...ksh->...kgth", by_scores, k_j)

                return jax.lax.cond(reaches(plan, x["limits"], spot), attend, lambda *skip: skip, carry, by_q_i)

            by_q, by_bias = carry
            start = zeros(k_j), zeros(v_j), by_bias
            (by_k, by_v, by_bias), by_q = jax.lax.scan(query_block, start, (numbers, *queries, by_q))
            return (by_q, by_bias), (by_k, by_v)

        blocks = jnp.arange(len(keys["k"])), keys["k"], keys["v"]
        (by_q, by_bias), more = jax.lax.scan(key_block, (by_q, by_bias), blocks)
        return by_q, by_bias, jax.tree.map(jnp.add, arriving, more)

    keys = _keys(plan, x)
    start = zeros(queries[0]), zeros(x["bias"]) if "bias" in x else None, (zeros(keys["k"]), zeros(keys["v"]))
    by_q, by_bias, by_keys = _go_round(plan, visit, start, keys)
    by_k, by_v = (rearrange(by, "j ... K s H -> ... (j s) K H") for by in _pass_on(plan, by_keys))
    results = {"q": rearrange(by_q, "i ... K G t H -> ... (i t) (K G) H"), "k": by_k, "v": by_v}
    if by_bias is not None:
        results["bias"] = by_bias if by_bias.shape[-2] > 1 else jax.lax.psum(by_bias, plan.axes)
    return {name: by.astype(x[name].dtype) for name, by in results.items()}
