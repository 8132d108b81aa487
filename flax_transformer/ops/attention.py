"""Softmax attention (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762), one signature over several kernels.

Axes: B batch, T query positions, S key positions, N query heads, K key/value heads, H head width.
Grouped-query heads: Ainslie et al. 2023, https://arxiv.org/abs/2305.13245.
"""

import logging
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flax_transformer.ops.blockwise import blockwise_attention, blockwise_serves
from flax_transformer.ops.cudnn import cudnn_attention, cudnn_serves
from flax_transformer.ops.dropout import Dropout
from flax_transformer.ops.eager_call import reused
from flax_transformer.ops.mask import Mask, check_mask
from flax_transformer.ops.mask_field import check_broadcast
from flax_transformer.ops.ring import ring_attention, ring_serves
from flax_transformer.ops.splash import splash_attention, splash_serves
from flax_transformer.ops.xla import xla_attention, xla_serves
from flax_transformer.parallel.axis import parts
from flax_transformer.parallel.explicit import implicit

logger = logging.getLogger(__name__)
"""Says, at level INFO, which calls on a mesh that splits the length run no ring, and why."""

# name: (why it cannot serve a call or None, the kernel); `auto` takes the first that can.
BACKENDS = {
    "ring": (ring_serves, ring_attention),
    "cudnn": (cudnn_serves, cudnn_attention),
    "splash": (splash_serves, splash_attention),
    "xla": (xla_serves, xla_attention),
    "blockwise": (blockwise_serves, blockwise_attention),
}

# From this many scores a head on, `auto` prefers blockwise to xla: on CPU it is then 1.3 to 3 times faster, forward and
# backward, and needs a tenth of the memory or less; at 512 × 512 it is up to 1.2 times slower.
LARGE = 2048 * 2048


@implicit("q")
@reused
def attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K H"],
    mask: Mask | None = None,
    bias: Float[Array, "*#B #N #T #S"] | None = None,
    *,
    scale: float | None = None,
    dropout: Dropout | None = None,
    backend: str = "auto",
) -> Float[Array, "*B T N H"]:
    """Mix values by the softmax of query-key products; query head n uses key/value head `n // (N / K)`.

    The softmax is taken in float32, or float64 for such inputs. A query that sees no key gets zeros, and no gradient.

    Args:
        q: queries.
        k: keys.
        v: values.
        mask: what each query sees; None is everything.
        bias: added to the scaled scores; without all batch axes it is [N, T, S] or [T, S], the same for every row.
        scale: factor on the scores, `1 / sqrt(H)` by default.
        dropout: drops attention weights.
        backend: `auto` or a name that `explain_attention` lists.

    Raises:
        ValueError: shapes that do not fit, an unknown backend, or a named one that cannot serve this call.

    >>> import jax.numpy as jnp
    >>> q, k, v = jnp.zeros((2, 1, 2)), jnp.ones((2, 1, 2)), jnp.array([[[0.0, 4.0]], [[2.0, 0.0]]])
    >>> attention(q, k, v, Mask(causal=True))[:, 0]
    Array([[0., 4.],
           [1., 2.]], dtype=float32)
    """
    check_call(q, k, v, mask, bias)
    mask = aligned(mask, q, k)
    name = _choose(q, k, v, mask, bias, dropout) if backend == "auto" else backend
    if name not in BACKENDS:
        raise ValueError(f"an attention backend must be one of {', '.join(['auto', *BACKENDS])}, got {backend!r}")
    serves, run = BACKENDS[name]
    if reason := serves(q, k, v, mask, bias, dropout):
        raise ValueError(f"attention backend {name!r} cannot serve this call: {reason}")
    if not (q.size and k.size):
        return jnp.zeros_like(q)  # no query, or none that sees a key
    return run(q, k, v, mask, bias, 1 / math.sqrt(q.shape[-1]) if scale is None else scale, dropout)


def explain_attention(
    q: Float[Array | jax.ShapeDtypeStruct, "*B T N H"],
    k: Float[Array | jax.ShapeDtypeStruct, "*B S K H"],
    v: Float[Array | jax.ShapeDtypeStruct, "*B S K H"],
    mask: Mask | None = None,
    bias: Float[Array | jax.ShapeDtypeStruct, "*#B #N #T #S"] | None = None,
    *,
    dropout: Dropout | None = None,
) -> str:
    """Return which backend `auto` takes for a call, and why others cannot serve it. Shapes alone will do.

    >>> import jax
    >>> q = jax.ShapeDtypeStruct((2, 16, 4, 32), "float32")
    >>> print(explain_attention(q, q, q))
    ring       cannot: no mesh with an axis 'sequence' larger than 1 is set
    cudnn      cannot: it needs an NVIDIA GPU, the platform is 'cpu'
    splash     cannot: it needs a TPU, the platform is 'cpu'
    xla        chosen
    blockwise  can
    """
    check_call(q, k, v, mask, bias)
    mask = aligned(mask, q, k)
    chosen = _choose(q, k, v, mask, bias, dropout)
    lines = []
    for name, (serves, _) in BACKENDS.items():
        reason = serves(q, k, v, mask, bias, dropout)
        lines.append(f"{name:<11}{f'cannot: {reason}' if reason else 'chosen' if name == chosen else 'can'}")
    return "\n".join(lines)


def _choose(q, k, v, mask, bias, dropout) -> str:
    names, scores = list(BACKENDS), q.shape[-3] * k.shape[-3]
    if isinstance(scores, int) and scores >= LARGE:  # a length that `jax.export` leaves open is of no size
        names.sort(key=lambda name: name == "xla")
    name = next(name for name in names if BACKENDS[name][0](q, k, v, mask, bias, dropout) is None)
    if logger.isEnabledFor(logging.INFO) and name != "ring" and q.shape[-3] != 1 and parts("length") > 1:
        reason, lengths = ring_serves(q, k, v, mask, bias, dropout), f"{q.shape[-3]} × {k.shape[-3]}"
        logger.info("attention of %s positions, split over devices, is %s and no ring: %s", lengths, name, reason)
    return name


def aligned(mask, q, k) -> Mask | None:
    """Leave an offset out that says what is so without one: kernels that take none can then serve."""
    same = mask is not None and isinstance(mask.offset, int) and mask.offset == k.shape[-3] - q.shape[-3]
    return mask.at(None) if same else mask


def check_call(q, k, v, mask, bias) -> None:
    """Raise ValueError for arguments that do not fit each other, whatever mixes the values."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if len(x.shape) < 3:
            raise ValueError(f"attention takes {name} as [*batch, positions, heads, width], got {x.shape}")
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise ValueError(f"attention takes {name} as floating point, got {x.dtype}")
    *batch, T, N, H = q.shape
    *key_batch, S, K, key_width = k.shape
    if k.shape != v.shape:
        raise ValueError(f"keys and values must have one shape, got {k.shape} and {v.shape}")
    if key_batch != batch:
        raise ValueError(f"queries and keys must have the same batch axes, got {tuple(batch)} and {tuple(key_batch)}")
    if key_width != H:
        raise ValueError(f"queries and keys must have one head width, got {H} and {key_width}")
    if N % K:
        raise ValueError(f"query heads must be a multiple of kv heads, got N={N}, K={K}")
    if mask is not None:
        check_mask(mask)
        mask.check(tuple(batch), N, T, S)
    if bias is not None:
        check_broadcast("bias", bias.shape, (*batch, N, T, S))
        if len(bias.shape) not in (2, 3, len(q.shape)) or not jnp.issubdtype(bias.dtype, jnp.floating):
            rule = "a bias must be floating point of [*B, N, T, S], [N, T, S] or [T, S]"
            raise ValueError(f"{rule}, got {bias.dtype} of {bias.shape}")
