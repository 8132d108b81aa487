"""What a model of images and texts leaves to its decoder of texts.

Axes: B batch, T positions, R rows (B times the hypotheses of each), D width, V vocabulary.
"""

import jax
from jaxtyping import Array, Float, Int

from flax_transformer.models.causal import Causal, CausalCache
from flax_transformer.models.output import Output
from flax_transformer.nn.module import Module


class WithText(Module):
    """A model with a decoder-only one, `text`, which makes logits and decodes."""

    text: Causal

    use = "text-generation"

    def output(self, hidden: Float[Array, "*B T D"]) -> Output:
        """Return what logits are made of."""
        return self.text.output(hidden)

    def init_cache(self, batch: int, length: int, *, beams: int = 1) -> CausalCache:
        """Make an empty cache for texts without images, as `Causal.init_cache` does."""
        return self.text.init_cache(batch, length, beams=beams)

    def step(self, cache: CausalCache, token: Int[Array, "R"]) -> tuple[Float[Array, "R V"], CausalCache]:
        """Decode one token: logits of the next one, and the cache with this one in it."""
        return self.text.step(cache, token)

    def for_decoding(self) -> "WithText":
        """Copy the model, laid out for decoding on a CPU: the same function."""
        copy = jax.tree.map(lambda leaf: leaf, self)
        copy.text = self.text.for_decoding()
        return copy
