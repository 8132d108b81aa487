"""What attention variants have in common: `attention`'s signature, and one sentence where they cannot serve a call.

A variant is a value, a frozen dataclass that is called: two of the same options are equal, as a config wants it, so
that `AttentionConfig(attend=LocalAttention(window=128))` is written to a run's folder and compiled once.

Axes: B batch, T query positions, S key positions, N query heads, K key/value heads, H head width.
"""

import math
from typing import ClassVar

import jax.numpy as jnp
from jax import ShapeDtypeStruct
from jaxtyping import Array, Float

from flax_transformer.ops.attention import aligned, check_call
from flax_transformer.ops.dropout import Dropout
from flax_transformer.ops.eager_call import reused
from flax_transformer.ops.mask import Mask
from flax_transformer.parallel.explicit import implicit

EVERY_MASK = frozenset({"causal", "window", "lengths", "segments", "dense", "offset", "also"})
"""All fields of a mask."""

_ASKED = {
    "dropout": "dropout of attention weights",
    "bias": "bias of scores",
    "scale": "scale of scores",
    "cross": "queries of another length than the keys",
    "causal": "causal mask",
    "window": "window in a mask",
    "lengths": "lengths",
    "segments": "segments",
    "dense": "dense mask",
    "offset": "offset of the queries among the keys, and so no cache",
    "also": "union of masks",
}


def placeless(q: Array | ShapeDtypeStruct, k: Array | ShapeDtypeStruct, mask: Mask) -> str | None:
    """Say why nothing that goes by positions serves a cache of beams or of padded rows: a dense mask hides places."""
    if mask.dense is None or q.shape[-3] == k.shape[-3]:
        return None
    return "it goes by positions, which a dense mask of other queries than keys (beams, padded rows of a cache) hides"


class Variant:
    """An attention function with options; a subclass says in `able` what it takes, and mixes the values in `mix`."""

    name: ClassVar[str]
    able: ClassVar[frozenset[str]] = frozenset()

    def limit(self, q: Array | ShapeDtypeStruct, k: Array | ShapeDtypeStruct, mask: Mask) -> str | None:
        """Say what else keeps it from serving a call."""
        return None

    def mix(
        self, q: Array, k: Array, v: Array, mask: Mask, bias: Array | None, scale: float, dropout: Dropout | None
    ) -> Array:
        """Mix the values; arguments are checked."""
        raise NotImplementedError

    def refuses(
        self,
        q: Float[Array | ShapeDtypeStruct, "*B T N H"],
        k: Float[Array | ShapeDtypeStruct, "*B S K H"],
        v: Float[Array | ShapeDtypeStruct, "*B S K H"],
        mask: Mask | None = None,
        bias: Float[Array | ShapeDtypeStruct, "*#B #N #T #S"] | None = None,
        *,
        scale: float | None = None,
        dropout: Dropout | None = None,
    ) -> str | None:
        """Say why a call cannot be served, None where it can. Shapes alone will do."""
        check_call(q, k, v, mask, bias)
        mask = aligned(mask, q, k) or Mask()
        asked = {
            name for name in ("window", "lengths", "segments", "dense", "offset") if getattr(mask, name) is not None
        }
        asked |= {name for name in ("causal", "also") if getattr(mask, name)}
        asked |= {"dropout"} if dropout is not None and dropout.rate > 0 else set()
        asked |= {name for name, given in (("bias", bias), ("scale", scale)) if given is not None}
        asked |= {"cross"} if q.shape[-3] != k.shape[-3] and mask.offset is None else set()
        missing = [words for name, words in _ASKED.items() if name in asked - self.able]
        return f"it takes no {missing[0]}" if missing else self.limit(q, k, mask)

    @implicit("q")
    @reused
    def __call__(
        self,
        q: Float[Array, "*B T N H"],
        k: Float[Array, "*B S K H"],
        v: Float[Array, "*B S K H"],
        mask: Mask | None = None,
        bias: Float[Array, "*#B #N #T #S"] | None = None,
        *,
        scale: float | None = None,
        dropout: Dropout | None = None,
    ) -> Float[Array, "*B T N H"]:
        """Mix values; arguments as those of `attention`.

        Raises:
          ValueError: shapes that do not fit, or a call that this variant cannot serve.
        """
        if reason := self.refuses(q, k, v, mask, bias, scale=scale, dropout=dropout):
            raise ValueError(f"{self.name} attention cannot serve this call: {reason}")
        if not (q.size and k.size):
            return jnp.zeros_like(q)
        dropout = dropout if dropout is not None and dropout.rate > 0 else None
        scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        return self.mix(q, k, v, aligned(mask, q, k) or Mask(), bias, scale, dropout)
