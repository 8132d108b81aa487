"""The output layer of every language model: products with a table, perhaps scaled, perhaps with a bias."""

from dataclasses import dataclass, replace
from typing import Any

import jax
from jaxtyping import Array, Float

from flax_transformer.nn import EmbeddingConfig


def output_table(cfg: EmbeddingConfig) -> EmbeddingConfig:
    """Give the config of an output table of its own: as many tokens, no positions or types."""
    return replace(cfg, position="none", types=0, norm=False, project=None, own_table=True)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Output:
    """Hidden states and what they are multiplied with: all that logits, or a loss without logits, need."""

    hidden: Any
    """[*B, T, D]."""
    embedding: Any
    """The `Embedding` whose table it is."""
    bias: Any = None
    """[V], or None."""

    def logits(self) -> Float[Array, "*B T V"]:
        """Multiply."""
        logits = self.embedding.attend(self.hidden)
        return logits if self.bias is None else logits + self.bias.astype(logits.dtype)
