"""What a decoder-only model remembers of the tokens so far.

Axes: B batch, R rows (B times the hypotheses of each), P positions of a prompt.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jaxtyping import Array, Int

from flax_transformer.nn import Caches, each_cache


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CausalCache:
    """What decoding carries: each layer's keys and values, and which positions of the prompts are padding."""

    layers: Caches
    index: Any
    """Positions written: an int32, or what stands for it in a tree of shapes."""
    padding: Any = None
    """[B, P], True where a prompt has no token; None where all are full."""
    prefix: int = field(default=0, metadata={"static": True})
    """Positions before the first token, which lengths of a cache do not count."""

    def reorder(self, rows: Int[Array, "R"]) -> "CausalCache":
        """Select hypotheses: row i continues what row `rows[i]` was, of the same prompt."""
        return replace(self, layers=each_cache(lambda cache: cache.reorder(rows), self.layers))

    def grow(self, length: int) -> "CausalCache":
        """Make room for `length` positions in all."""
        return replace(self, layers=each_cache(lambda cache: cache.grow(self.prefix + length), self.layers))

    def by_row(self) -> "CausalCache":
        """Let each row go on from another position, as `extend` does."""
        padding = None if self.padding is None else self.padding[:, None]
        return replace(self, layers=each_cache(lambda cache: cache.by_row(), self.layers), padding=padding)

    def fork(self, beams: int, length: int) -> "CausalCache":
        """Prepare for `beams` hypotheses of every prompt, up to `length` positions in all."""
        return replace(self, layers=each_cache(lambda cache: cache.fork(beams, self.prefix + length), self.layers))
