"""What a decoder-only model remembers of the tokens so far.

Axes: B batch, R rows (B times the hypotheses of each), P positions of a prompt.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from flax_transformer.nn import Caches, cache_length, each_cache
from flax_transformer.ops import Mask


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
    shift: Any = None
    """[B], what is added to the number of a token after the prompt to give its position; None: nothing."""

    def places(self, rows: int, T: int) -> tuple[Int[Array, "#R T"], Mask | None]:
        """Return the positions of T more tokens, which count no padding, and what of the cache is none.

        Args:
          rows: R.
        """
        if self.padding is None:
            positions, mask = (self.index - self.prefix + jnp.arange(T))[None], None
        else:
            after = cache_length(self.layers) - self.prefix - self.padding.shape[1]
            visible = jnp.pad(~self.padding, ((0, 0), (self.prefix, after)), constant_values=True)
            visible = jnp.repeat(visible, rows // self.padding.shape[0], axis=0)
            counted = jnp.cumsum(visible, axis=1, dtype=jnp.int32) - 1 - self.prefix
            positions = jax.lax.dynamic_slice_in_dim(jnp.maximum(counted, 0), self.index, T, axis=1)
            mask = Mask(dense=visible[:, None, None])
        if self.shift is not None:
            positions = positions + jnp.repeat(self.shift, rows // len(self.shift))[:, None]
        return positions, mask

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


def ends_of(counts: Int[Array, "B"], padding: Bool[Array, "B P"] | None) -> Int[Array, "B"]:
    """Return where so many tokens of each prompt end, padding before them included."""
    return counts if padding is None else jnp.sum(jnp.cumsum(~padding, axis=-1) <= counts[:, None], axis=-1)
