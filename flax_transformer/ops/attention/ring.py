"""Exact attention with the sequence split over devices: keys and values go round, queries stay.

Each device of the mesh axis `sequence`, or of what else splits `length` by `axis_rules`, accumulates the softmax of its
queries over the keys that pass by (Liu et al. 2023, https://arxiv.org/abs/2310.01889); the backward pass is a second
ring, in which the gradients of keys and values travel with them. What a device holds depends on its part of the
sequence, not on the whole. Under a causal mask each takes an early and a late piece, so that all have the same work
(`zigzag`).

Axes as in `attention`. What one device does is in `ring_device`.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.ops.attention.call import FEATURES, Call
from flax_transformer.ops.attention.function import AttentionFunction
from flax_transformer.ops.attention.ring_block import RingSpec
from flax_transformer.ops.attention.ring_device import attend, attend_back
from flax_transformer.ops.attention.zigzag import from_zigzag, to_zigzag
from flax_transformer.ops.device_map import device_map
from flax_transformer.ops.dropout import counts_places
from flax_transformer.ops.float32 import at_least_float32, widen
from flax_transformer.ops.linear_map import in_one_piece, linear_map
from flax_transformer.ops.mask import Mask
from flax_transformer.ops.remat import attended
from flax_transformer.ops.row_random import drawn_from
from flax_transformer.parallel.axis import mesh_axes, parts, spelled

_BLOCK, _LEAST = 512, 128

# The axis along which devices share an operand; one of size 1 broadcasts and is everybody's, as is what is not here.
_SPLIT = {name: -3 for name in ("q", "k", "v", "out", "lse", "dout", "delta")}
_SPLIT |= {"bias": -2, "dense": -2, "query_segments": -1, "key_segments": -1}


@frozen
class RingAttention(AttentionFunction):
    """Softmax attention to keys as they pass by; blocks that the mask hides entirely are skipped."""

    name = "ring"
    supports = frozenset(FEATURES) - {"rounded"}

    def limit(self, call: Call) -> str | None:
        """Refuse what no mesh in context splits by length, in equal pieces."""
        ranks, (T, S) = parts("length"), call.lengths
        if ranks == 1:
            return f"no mesh with an axis {spelled('length')!r} larger than 1 is set"
        for name, length in (("T", T), ("S", S)):
            piece = length // (2 * ranks)
            if length % (2 * ranks) or not length:
                return f"lengths must be multiples of 2 × {spelled('length')} = {2 * ranks}, got {name}={length}"
            if _block(length, ranks) < min(piece, _LEAST):
                return f"{name}={length} makes pieces of {piece}, with no divisor from {_LEAST} to {_BLOCK}"
        if call.dropout is not None and not counts_places(call.dropout.key):
            return "dropout by part needs a threefry key"
        return None

    def run(self, call: Call) -> Float[Array, "*B T N H"]:
        """Attend."""
        plan, rest = _plan(call)
        q, bias = call.q, call.bias
        bias = None if bias is None else _aligned(bias.astype(at_least_float32(q.dtype)), q.ndim)
        return _ring(plan, q, call.k, call.v, bias, rest)


def _plan(call: Call) -> tuple[RingSpec, dict[str, Array]]:
    """Return what is static of a call, and the arrays beside queries, keys, values and bias."""
    q, mask, dropout, (T, S) = call.q, call.mask, call.dropout, call.lengths
    if mask.also:
        mask = Mask(dense=mask.materialize(T, S))
    *batch, _, N, _ = q.shape
    drop = dropout is not None
    drawn, at = drawn_from((*batch, N, T, S)) if drop else ((), {})
    lengths = jnp.minimum(S, S if mask.lengths is None else mask.lengths)
    offset = jnp.asarray(S - T if mask.offset is None else mask.offset)
    query_segments, key_segments = mask.segments or (None, None)
    ranks = parts("length")
    plan = RingSpec(
        axes=mesh_axes("length"),
        ranks=ranks,
        query_piece=T // (2 * ranks),
        key_piece=S // (2 * ranks),
        rows=_block(T, ranks),
        columns=_block(S, ranks),
        scale=call.resolved_scale,
        causal=mask.causal,
        window=mask.window,
        rate=dropout.rate if drop else 0.0,
        drawn=drawn,
    )
    rest = {
        "lengths": lengths,
        "offset": offset,
        # How far the mask reaches in any row of the batch, so that no device has to ask others for each block.
        "limits": jnp.stack([lengths.max(), offset.min(), offset.max()]),
        "query_segments": query_segments,
        "key_segments": key_segments,
        "dense": None if mask.dense is None else _aligned(mask.dense, q.ndim),
        "key": dropout.key if drop else None,
        "batch": at.get(0),
    }
    return plan, {name: x for name, x in rest.items() if x is not None}


def _block(length: int, ranks: int) -> int:
    """Return the largest block that cuts the pieces of a sequence evenly."""
    piece = length // (2 * ranks)
    return next(size for size in range(min(piece, _BLOCK), 0, -1) if piece % size == 0)


def _aligned(x: Array, ndim: int) -> Array:
    return x.reshape((1,) * (ndim - x.ndim) + x.shape)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _ring(plan, q, k, v, bias, rest):
    return in_one_piece(_forward, (q, k, v, bias, rest), plan=plan)["out"]


@partial(_ring.defjvp, symbolic_zeros=True)
def _derive(plan, operands, tangents):
    done = attended(in_one_piece(_forward, operands, plan=plan))
    tangents = tuple(
        None if tangent is None or isinstance(tangent, SymbolicZero) else tangent for tangent in tangents[:4]
    )
    return done["out"], linear_map(_tangent, _backward, (*operands, done), tangents, plan=plan)


def _forward(operands, *, plan):
    q, k, v, bias, rest = operands
    return _on_devices(plan, attend, ("out", "lse"), q=q, k=k, v=v, bias=bias, **rest)


def _tangent(saved, tangents, *, plan):
    # Forward mode is rare here, and goes round as the forward pass does; JAX differentiates that by itself.
    *operands, rest, _ = saved
    moving = [place for place, tangent in enumerate(tangents) if tangent is not None]

    def moved(*changed):
        every = dict(enumerate(operands)) | dict(zip(moving, changed, strict=True))
        return _forward((*every.values(), rest), plan=plan)["out"]

    return jax.jvp(moved, [operands[place] for place in moving], [tangents[place] for place in moving])[1]


def _backward(saved, dout, *, plan):
    q, k, v, bias, rest, done = saved
    delta = jnp.sum(widen(dout) * done["out"], axis=-1, keepdims=True)
    results = ("q", "k", "v") if bias is None else ("q", "k", "v", "bias")
    given = {"q": q, "k": k, "v": v, "bias": bias, "dout": dout, "lse": done["lse"], "delta": delta, **rest}
    by = _on_devices(plan, attend_back, results, **given)
    return by["q"], by["k"], by["v"], by.get("bias")


def _on_devices(plan, run, results, **operands):
    """Run a function on each device's part of the operands; other mesh axes stay the compiler's."""
    operands = {name: x for name, x in operands.items() if x is not None}

    def spec(name):
        axis, x = _SPLIT.get(name), operands.get(name)
        if axis is None or (x is not None and x.shape[axis] == 1):
            return PartitionSpec()
        return PartitionSpec(*[None] * ((operands["q"] if x is None else x).ndim + axis), plan.axes)

    given, returned = ({name: spec(name) for name in names} for names in (operands, results))

    def lay(move, specs, xs):
        def split(name):
            return plan.causal and specs[name] != PartitionSpec()

        return {name: move(x, _SPLIT[name], plan.ranks, plan.axes) if split(name) else x for name, x in xs.items()}

    def body(operands):
        return lay(from_zigzag, returned, run(plan, lay(to_zigzag, given, operands)))

    return device_map(body, given=(given,), made=returned, axes=plan.axes)(operands)
