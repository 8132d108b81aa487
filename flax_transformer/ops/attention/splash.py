"""Fused attention on TPU: JAX's splash attention kernels, which skip the blocks a mask hides.

Axes as in `attention`. Head widths are padded to lanes of 128 and positions to blocks.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange
from jax.experimental.pallas.ops.tpu import splash_attention as splash
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.ops.attention.call import Call
from flax_transformer.ops.attention.function import AttentionFunction
from flax_transformer.ops.device_map import device_map
from flax_transformer.ops.float32 import scaled
from flax_transformer.ops.mask import Mask
from flax_transformer.ops.platform import platform
from flax_transformer.ops.remat import ATTENDED
from flax_transformer.parallel.axis import auto_axes, mesh_axes, parts, spelled

_LANES = 128
_HIDDEN = np.iinfo(np.int32).min


@frozen
class SplashAttention(AttentionFunction):
    """Softmax attention by JAX's kernels for TPUs.

    The compiler cannot split a kernel: under a mesh each device runs it on its own rows and heads.
    """

    interpret: bool = False
    """Whether to run the kernel's program without a TPU."""

    name = "splash"
    supports = frozenset({"scale", "cross", "causal", "window", "lengths", "segments", "offset"})

    def unavailable(self) -> str | None:
        """Return why no TPU can be used, if none can and none is needed."""
        return None if platform() == "tpu" or self.interpret else f"it needs a TPU, the platform is {platform()!r}"

    def limit(self, call: Call) -> str | None:
        """Return what of types, the mask or the mesh keeps it from serving a call, if anything does."""
        mask, (T, S), batch, K = call.mask, call.lengths, call.q.shape[:-3], call.k.shape[-2]
        rows, columns = parts("batch"), parts("heads")
        rows_differ = rows > 1 and (not batch or batch[0] % rows)
        checks = (
            (call.q.dtype == jnp.float64, "it computes in float32, got float64"),
            (mask.positional() and mask.offset is not None, "it needs positions that are known when it is compiled"),
            (mask.positional() and T > S, f"causal and window masks need T <= S, got T={T}, S={S}"),
            (rows_differ, f"rows must be a multiple of {spelled('batch')} = {rows}, got {batch}"),
            (K % columns, f"kv heads must be a multiple of {spelled('heads')} = {columns}, got K={K}"),
        )
        return next((reason for fails, reason in checks if fails), None)

    def run(self, call: Call) -> Float[Array, "*B T N H"]:
        """Attend."""
        attend, axes = partial(_attend, scale=call.resolved_scale, interpret=self.interpret), auto_axes()
        mask = replace(call.mask, offset=None)  # it is known where it matters
        if not axes or jax.sharding.get_abstract_mesh().size == 1:
            return attend(call.q, call.k, call.v, mask)
        rows, split = mesh_axes("batch") or None, mesh_axes("heads") or None
        batch = call.q.ndim - 3
        heads = PartitionSpec(*((rows, *(None,) * batch)[:batch]), None, split)

        def place(leaf, rank):
            return PartitionSpec(rows if leaf.ndim == rank > 0 and leaf.shape[0] > 1 else None)

        lengths = None if mask.lengths is None else place(mask.lengths, batch)
        segments = None if mask.segments is None else tuple(place(ids, batch + 1) for ids in mask.segments)
        masks = Mask.tree_unflatten((mask.causal, mask.window), (lengths, segments, None, None, ()))
        attend = device_map(attend, given=(heads, heads, heads, masks), made=heads, axes=axes)
        return attend(call.q, call.k, call.v, mask)


def _attend(q: Array, k: Array, v: Array, mask: Mask, *, scale: float, interpret: bool) -> Array:
    *batch, T, N, _ = q.shape
    S = k.shape[-3]
    rows = _round_up(T)
    # A query that is only padding must still find a key under a window, else its softmax is 0 / 0.
    columns = _round_up(max(S, rows + S - T))
    kernel = splash.make_splash_mha_single_device(
        splash.MultiHeadMask([_positions(mask, rows, columns, S - T)] * N),
        block_sizes=_blocks(rows, columns),
        residual_checkpoint_name=ATTENDED,
        interpret=interpret,
    )
    ids = splash.SegmentIds(*_segments(mask, tuple(batch), (T, S), (rows, columns)))
    out = jax.vmap(kernel)(
        _heads_first(scaled(q, scale), rows), _heads_first(k, columns), _heads_first(v, columns), ids
    )
    out = rearrange(out[:, :, :T, : q.shape[-1]], "b N t h -> b t N h").reshape(q.shape).astype(q.dtype)
    if mask.lengths is None and mask.segments is None:
        return out
    # Where nothing is visible the kernel averages; XLA fuses this test into one pass that stores only the [T] result.
    seen = jnp.any(mask.materialize(T, S), axis=-1)
    return jnp.where(jnp.moveaxis(seen, -2, -1)[..., None], out, 0)


def _round_up(length):
    return -(-length // _LANES) * _LANES


def _blocks(rows, columns):
    row, column = (next(block for block in (512, 256, _LANES) if x % block == 0) for x in (rows, columns))
    return splash.BlockSizes(
        block_q=row,
        block_kv=column,
        block_q_dkv=row,
        block_kv_dkv=column,
        block_q_dq=row,
        block_kv_dq=column,
    )


def _positions(mask, rows, columns, offset):
    if mask.window is not None:
        left, right = mask.window
        return splash.LocalMask((rows, columns), (left, 0 if mask.causal else right), offset)
    return splash.CausalMask((rows, columns), offset) if mask.causal else splash.FullMask((rows, columns))


def _segments(mask, batch, lengths, padded):
    """Return ids of queries and keys; keys that are padding or beyond their length get one that no query has."""
    query, key = mask.segments or (jnp.zeros(lengths[0], jnp.int32), jnp.zeros(lengths[1], jnp.int32))
    limit = jnp.minimum(lengths[1], lengths[1] if mask.lengths is None else mask.lengths)
    key = jnp.where(jnp.arange(lengths[1]) < limit[..., None], key, _HIDDEN)
    ids = []
    for x, length, size in zip((query, key), lengths, padded, strict=True):
        x = jnp.broadcast_to(x.astype(jnp.int32), (*batch, length)).reshape(-1, length)
        ids.append(jnp.pad(x, ((0, 0), (0, size - length)), constant_values=_HIDDEN))
    ids[0] = jnp.where(ids[0] == _HIDDEN, _HIDDEN + 1, ids[0])
    return ids


def _heads_first(x, length):
    x = x.reshape(-1, *x.shape[-3:])
    _, old, _, width = x.shape
    x = jnp.pad(x, ((0, 0), (0, length - old), (0, 0), (0, -width % _LANES)))
    return rearrange(x, "b t n h -> b n t h")
