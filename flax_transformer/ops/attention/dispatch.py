"""Softmax attention (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762), one signature over several kernels.

Axes: B batch, T query positions, S key positions, N query heads, K key/value heads, H head width.
Grouped-query heads: Ainslie et al. 2023, https://arxiv.org/abs/2305.13245.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import jax
from jaxtyping import Array, Float
from qwix import QArray

from flax_transformer.ops.attention.blockwise import BlockwiseAttention
from flax_transformer.ops.attention.call import Call
from flax_transformer.ops.attention.cudnn import CudnnAttention
from flax_transformer.ops.attention.function import AttentionFunction
from flax_transformer.ops.attention.ring import RingAttention
from flax_transformer.ops.attention.splash import SplashAttention
from flax_transformer.ops.attention.xla import XlaAttention
from flax_transformer.ops.dropout import Dropout
from flax_transformer.ops.eager_call import reused
from flax_transformer.ops.mask import Mask
from flax_transformer.parallel.axis import parts
from flax_transformer.parallel.explicit import implicit

logger = logging.getLogger(__name__)
"""Says, at level INFO, which calls on a mesh that splits the length run no ring, and why."""

BACKENDS: dict[str, AttentionFunction] = {
    each.name: each
    for each in (RingAttention(), CudnnAttention(), SplashAttention(), XlaAttention(), BlockwiseAttention())
}
"""Kernels of softmax attention by name; `auto` takes the first that serves a call."""

# From this many scores a head on, `auto` prefers blockwise to xla: on CPU it is then 1.3 to 3 times faster, forward and
# backward, and needs a tenth of the memory or less; at 512 × 512 it is up to 1.2 times slower.
LARGE = 2048 * 2048


@implicit("q")
@reused
def attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"] | QArray,
    v: Float[Array, "*B S K H"] | QArray,
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
        k: keys; of few bits with a scale [*B, S, K, 1], as `nn.quantize_cache` makes them.
        v: values, likewise.
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
    call = Call(q, k, v, mask, bias, scale, dropout)
    name = _choose(call) if backend == "auto" else backend
    if name not in BACKENDS:
        raise ValueError(f"an attention backend must be one of {', '.join(['auto', *BACKENDS])}, got {backend!r}")
    if (seen := _watching.get()) is not None:
        seen[str(call)] = _verdicts(call, BACKENDS[name], BACKENDS)
    return BACKENDS[name].serve(call)


_watching: ContextVar[dict[str, dict[str, str]] | None] = ContextVar("watching", default=None)


@contextmanager
def watch_attention() -> Iterator[dict[str, dict[str, str]]]:
    """Collect how calls of `attention` are served that are traced, or run, within a `with` block.

    Yields:
      A dictionary that fills: of each kind of call, in words, what `explain_attention` says of each backend. What JAX
      has traced before, and knows, is not seen again.
    """
    seen: dict[str, dict[str, str]] = {}
    token = _watching.set(seen)
    try:
        yield seen
    finally:
        _watching.reset(token)


def explain_attention(
    q: Float[Array | jax.ShapeDtypeStruct, "*B T N H"],
    k: Float[Array | jax.ShapeDtypeStruct, "*B S K H"] | QArray,
    v: Float[Array | jax.ShapeDtypeStruct, "*B S K H"] | QArray,
    mask: Mask | None = None,
    bias: Float[Array | jax.ShapeDtypeStruct, "*#B #N #T #S"] | None = None,
    *,
    scale: float | None = None,
    dropout: Dropout | None = None,
    functions: Mapping[str, AttentionFunction] = BACKENDS,
) -> str:
    """Return which functions can serve a call, which backend `auto` takes, and why others cannot. Shapes will do.

    Args:
        functions: by name, such as `BACKENDS` or `VARIANTS`; the other arguments are those of `attention`.

    >>> import jax
    >>> q = jax.ShapeDtypeStruct((2, 16, 4, 32), "float32")
    >>> print(explain_attention(q, q, q))
    ring       cannot: no mesh with an axis 'sequence' larger than 1 is set
    cudnn      cannot: it needs an NVIDIA GPU, the platform is 'cpu'
    splash     cannot: it needs a TPU, the platform is 'cpu'
    xla        chosen
    blockwise  can
    """
    call = Call(q, k, v, mask, bias, scale, dropout)
    verdicts = _verdicts(call, BACKENDS[_choose(call)], functions)
    return "\n".join(f"{name:<11}{verdict}" for name, verdict in verdicts.items())


def _verdicts(call: Call, chosen: AttentionFunction, functions: Mapping[str, AttentionFunction]) -> dict[str, str]:
    """Say of functions, by name, whether they can serve a call."""
    reasons = {name: function.refuses(call) for name, function in functions.items()}
    return {
        name: f"cannot: {reason}" if reason else "chosen" if functions[name] is chosen else "can"
        for name, reason in reasons.items()
    }


def _choose(call: Call) -> str:
    names, (T, S) = list(BACKENDS), call.lengths
    if isinstance(T * S, int) and T * S >= LARGE:  # a length that `jax.export` leaves open is of no size
        names.sort(key=lambda name: name == "xla")
    name = next(name for name in names if BACKENDS[name].refuses(call) is None)
    if logger.isEnabledFor(logging.INFO) and name != "ring" and T != 1 and parts("length") > 1:
        reason = BACKENDS["ring"].refuses(call)
        logger.info("attention of %s positions, split over devices, is %s and no ring: %s", f"{T} × {S}", name, reason)
    return name
