"""What all attention functions have in common, kernels of softmax attention and other mechanisms alike.

A function is a value, a frozen dataclass that is called: two of the same options are equal, as a config wants it, so
that `AttentionConfig(attend=LocalAttention(window=128))` is written to a run's folder and compiled once.
"""

import math
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float
from qwix import QArray

from flax_transformer.ops.attention.call import FEATURES, Call
from flax_transformer.ops.dropout import Dropout
from flax_transformer.ops.eager_call import reused
from flax_transformer.ops.mask import Mask
from flax_transformer.parallel.explicit import implicit


class AttentionFunction:
    """Attention with `attention`'s signature: `refuses` says why a call cannot be served, `run` serves it.

    A subclass names the features of a call that it serves in `supports`, what else it needs in `limit`.
    """

    name: ClassVar[str]
    supports: ClassVar[frozenset[str]] = frozenset()
    """Of `call.FEATURES`."""

    def unavailable(self) -> str | None:
        """Return why no call can be served on this platform, if that is so."""
        return None

    def limit(self, call: Call) -> str | None:
        """Return what else keeps it from serving a call, if anything does."""
        return None

    def run(self, call: Call) -> Float[Array, "*B T N H"]:
        """Compute a call that is not refused and has queries and keys."""
        raise NotImplementedError

    def refuses(self, call: Call) -> str | None:
        """Return why a call cannot be served, None where it can. Shapes alone will do."""
        if reason := self.unavailable():
            return reason
        missing = call.features - self.supports
        lacks = next((words for name, words in FEATURES.items() if name in missing), None)
        return f"it takes no {lacks}" if lacks else self.limit(call)

    @implicit("q")
    @reused
    def __call__(
        self,
        q: Float[Array, "*B T N H"],
        k: Float[Array, "*B S K H"] | QArray,
        v: Float[Array, "*B S K H"] | QArray,
        mask: Mask | None = None,
        bias: Float[Array, "*#B #N #T #S"] | None = None,
        *,
        scale: float | None = None,
        dropout: Dropout | None = None,
    ) -> Float[Array, "*B T N H"]:
        """Mix values; arguments as those of `attention`.

        Raises:
          ValueError: shapes that do not fit, or a call that this function cannot serve.
        """
        return self.serve(Call(q, k, v, mask, bias, scale, dropout))

    def serve(self, call: Call) -> Float[Array, "*B T N H"]:
        """Compute a call.

        Raises:
          ValueError: it cannot be served.
        """
        if reason := self.refuses(call):
            raise ValueError(f"{self.name} attention cannot serve this call: {reason}")
        if not (call.q.size and math.prod(call.k.shape)):
            return jnp.zeros_like(call.q)  # no query, or none that sees a key
        return self.run(call)
