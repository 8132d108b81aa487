"""Fused attention by cuDNN on NVIDIA GPUs, through `jax.nn.dot_product_attention`.

Axes as in `attention`. It keeps nothing of size T S unless a bias is given.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flax_transformer.ops.dropout import Dropout
from flax_transformer.ops.mask import Mask
from flax_transformer.ops.platform import compute_capability, platform
from flax_transformer.parallel.axis import parts, spelled


def cudnn_serves(q, k, v, mask, bias, dropout) -> str | None:
    """Say why cuDNN cannot serve a call, or None."""
    T, S, K, H = q.shape[-3], k.shape[-3], k.shape[-2], q.shape[-1]
    mask, capability = mask or Mask(), compute_capability()
    widest = 256 if capability and capability[0] == 9 else 128
    checks = (
        (platform() != "gpu", f"it needs an NVIDIA GPU, the platform is {platform()!r}"),
        (q.dtype not in (jnp.float16, jnp.bfloat16), f"it takes float16 or bfloat16, got {q.dtype}"),
        (not q.dtype == k.dtype == v.dtype, f"q, k and v must have one type, got {q.dtype}, {k.dtype}, {v.dtype}"),
        (capability and capability < (8, 0), f"it needs compute capability 8.0, the device has {capability}"),
        (H % 8 != 0 or widest < H, f"the head width must be a multiple of 8 up to {widest}, got {H}"),
        (dropout is not None and dropout.rate > 0, "it has no dropout of attention weights"),
        (mask.segments is not None or mask.dense is not None, "segments and dense masks would need T x S booleans"),
        (mask.also, "it takes no union of masks"),
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


def cudnn_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K H"],
    mask: Mask | None,
    bias: Float[Array, "*#B #N #T #S"] | None,
    scale: float,
    dropout: Dropout | None = None,
) -> Float[Array, "*B T N H"]:
    """Attend by cuDNN; rows without a visible key come back as zeros."""
    mask, shape = mask or Mask(), q.shape
    *batch, T, _, _ = shape
    S = k.shape[-3]
    q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (q, k, v))
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
        scale=scale,
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
