"""What one device of the ring does: it scores its queries against the keys that pass by, and sends these on.

Axes as in `attention`; within blocks heads come as K G and before positions. x are the operands as the device has them.
All is for the inside of a `jax.shard_map` over the mesh axes that split the sequence.
"""

import jax
import jax.numpy as jnp
from einops import rearrange
from jaxtyping import Array

from flax_transformer.ops.attention.online_softmax import accumulate, accumulate_gradients, add_block, begin, finish
from flax_transformer.ops.attention.ring_block import RingSpec, dropper, masked_scores, reaches, spot_of
from flax_transformer.ops.float32 import zeros
from flax_transformer.ops.remat import AGAIN


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
    """Compute `out` and `lse`, the logarithm of the softmax's denominator, of the device's queries."""
    rank, q = jax.lax.axis_index(plan.axes), _query_blocks(plan, x, "q")

    def visit(state, keys, source):
        def query_block(block):
            i, q_i, state = block

            def key_block(state, block):
                j, k_j, v_j = block
                spot = spot_of(plan, rank, source, i, j)

                def attend(state):
                    scores = masked_scores(plan, x, keys.get("segments"), q_i, k_j, spot)
                    return accumulate(state, scores, v_j, dropper(plan, x, spot))

                return jax.lax.cond(reaches(plan, x["limits"], spot), attend, lambda state: state, state), None

            return jax.lax.scan(key_block, state, (jnp.arange(len(keys["k"])), keys["k"], keys["v"]))[0]

        return jax.lax.map(query_block, (jnp.arange(len(q)), q, state))

    out, lse = finish(_go_round(plan, visit, begin(q), _keys(plan, x)), q.dtype)

    def flat(x):
        return rearrange(x, "i ... K G t H -> ... (i t) (K G) H")

    return {"out": flat(out), "lse": flat(lse)}


def attend_back(plan: RingSpec, x: dict[str, Array]) -> dict[str, Array]:
    """Compute the gradients by `q`, `k`, `v` and `bias`, as far as the device has them.

    Args:
        x: also has `dout`, the gradient by `out`, `lse`, and `delta`, the sum over H of dout times out.
    """
    queries = [_query_blocks(plan, x, name) for name in ("q", "dout", "lse", "delta")]
    rank, numbers = jax.lax.axis_index(plan.axes), jnp.arange(len(queries[0]))

    def visit(state, keys, source):
        dq, dbias, dkeys = state
        arriving = _pass_on(plan, dkeys)

        def key_block(carry, block):
            j, k_j, v_j = block

            def query_block(carry, block):
                i, q_i, dout_i, lse_i, delta_i, dq_i = block
                spot = spot_of(plan, rank, source, i, j)

                def attend(carry, dq_i):
                    dk, dv, dbias = carry
                    with jax.named_scope(AGAIN):
                        weights = jnp.exp(masked_scores(plan, x, keys.get("segments"), q_i, k_j, spot) - lse_i)
                    block = q_i, k_j, v_j, dout_i, delta_i
                    gradients = (dq_i, dk, dv), weights, block, plan.scale, dropper(plan, x, spot)
                    (dq_i, dk, dv), dscores = accumulate_gradients(*gradients)
                    dbias = None if dbias is None else add_block(dbias, dscores, i, spot.column // plan.columns)
                    return (dk, dv, dbias), dq_i

                return jax.lax.cond(reaches(plan, x["limits"], spot), attend, lambda *skip: skip, carry, dq_i)

            dq, dbias = carry
            start = zeros(k_j), zeros(v_j), dbias
            (dk, dv, dbias), dq = jax.lax.scan(query_block, start, (numbers, *queries, dq))
            return (dq, dbias), (dk, dv)

        blocks = jnp.arange(len(keys["k"])), keys["k"], keys["v"]
        (dq, dbias), more = jax.lax.scan(key_block, (dq, dbias), blocks)
        return dq, dbias, jax.tree.map(jnp.add, arriving, more)

    keys = _keys(plan, x)
    start = zeros(queries[0]), zeros(x["bias"]) if "bias" in x else None, (zeros(keys["k"]), zeros(keys["v"]))
    dq, dbias, dkeys = _go_round(plan, visit, start, keys)
    dk, dv = (rearrange(gradient, "j ... K s H -> ... (j s) K H") for gradient in _pass_on(plan, dkeys))
    results = {"q": rearrange(dq, "i ... K G t H -> ... (i t) (K G) H"), "k": dk, "v": dv}
    if dbias is not None:
        results["bias"] = dbias if dbias.shape[-2] > 1 else jax.lax.psum(dbias, plan.axes)
    return {name: gradient.astype(x[name].dtype) for name, gradient in results.items()}
