"""Fused attention by cuDNN on NVIDIA GPUs, through `jax.nn.dot_product_attention`.

Axes as in `attention`. It keeps nothing of size T S unless a bias is given.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.ops.attention.call import Call
from flax_transformer.ops.attention.function import AttentionFunction
from flax_transformer.ops.platform import compute_capability, platform
from flax_transformer.parallel.axis import parts, spelled


@frozen
class CudnnAttention(AttentionFunction):
    """Softmax attention by cuDNN; queries without a visible key get zeros."""

    name = "cudnn"
    supports = frozenset({"bias", "scale", "cross", "causal", "window", "lengths", "offset"})

    def unavailable(self) -> str | None:
        """Return why cuDNN is not there, if it is not."""
        return None if platform() == "gpu" else f"it needs an NVIDIA GPU, the platform is {platform()!r}"

    def limit(self, call: Call) -> str | None:
        """Return what of shapes, types, the mask or the mesh keeps cuDNN from serving a call, if anything does."""
        q, k, v, mask, bias = call.q, call.k, call.v, call.mask, call.bias
        (T, S), K, H = call.lengths, k.shape[-2], q.shape[-1]
        capability = compute_capability()
        widest = 256 if capability and capability[0] == 9 else 128
        checks = (
            (q.dtype not in (jnp.float16, jnp.bfloat16), f"it takes float16 or bfloat16, got {q.dtype}"),
            (not q.dtype == k.dtype == v.dtype, f"q, k and v must have one type, got {q.dtype}, {k.dtype}, {v.dtype}"),
            (capability and capability < (8, 0), f"it needs compute capability 8.0, the device has {capability}"),
            (H % 8 != 0 or widest < H, f"the head width must be a multiple of 8 up to {widest}, got {H}"),
            (mask.positional() and mask.offset is not None, "it aligns positions itself and takes no offset"),
            (mask.positional() and T != S, f"causal and window masks need T = S, got T={T}, S={S}"),
            (mask.window is not None and not mask.causal, "a window must be causal"),
            (mask.window is not None and mask.lengths is not None, "it takes a window or lengths, not both"),
            (bias is not None and bias.shape[-2:] != (T, S), "a bias must have its whole extent over T and S"),
            # Forward odd lengths would do, but nobody knows here if a backward pass follows.
            (T % 2 or S % 2, f"T and S must be even, got T={T}, S={S}"),
            (parts("length") > 1, "it has whole sequences, the mesh splits them"),
            (K % parts("heads"), f"kv heads must be a multiple of {spelled('heads')} = {parts('heads')}, got K={K}"),
        )
        return next((reason for fails, reason in checks if fails), None)

    def run(self, call: Call) -> Float[Array, "*B T N H"]:
        """Attend."""
        mask, bias, shape, (T, S) = call.mask, call.bias, call.q.shape, call.lengths
        batch = shape[:-3]
        q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (call.q, call.k, call.v))
        if bias is not None:
            bias = bias.reshape((1,) * (len(shape) - bias.ndim) + bias.shape)
            lead = batch if max(bias.shape[:-3], default=1) > 1 else bias.shape[:-3]
            bias = jnp.broadcast_to(bias, (*lead, *bias.shape[-3:])).reshape(-1, *bias.shape[-3:]).astype(q.dtype)
        lengths = mask.lengths
        if lengths is not None:
            lengths = jnp.clip(jnp.broadcast_to(lengths, batch).reshape(-1), 0, S).astype(jnp.int32)
        out = jax.nn.dot_product_attention(
            q,
            k,
            v,
            bias,
            scale=call.resolved_scale,
            is_causal=mask.causal,
            # A length of 0 would be a softmax over nothing: attend to one key, and drop the result below.
            key_value_seq_lengths=None if lengths is None else jnp.maximum(lengths, 1),
            query_seq_lengths=None if lengths is None else jnp.full(len(q), T, jnp.int32),
            local_window_size=None if mask.window is None else (mask.window[0], 0),
            implementation="cudnn",
        )
        if lengths is not None:
            out = jnp.where((lengths > 0)[:, None, None, None], out, 0)
        return out.reshape(shape)
