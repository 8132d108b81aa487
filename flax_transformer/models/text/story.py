"""Question answering over stories, by sentences (Henaff et al. 2017, https://arxiv.org/abs/1612.03969, as Dehghani et
al. 2019, https://arxiv.org/abs/1807.03819, §3.1, have it): each is the sum of its words, every word times a learned
mask of its place; a trunk of any kind then reads the sentences.

Axes: B batch, S sentences, W words of a sentence, D width.
"""

from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import LENGTH, draw_tokens
from flax_transformer.models.protocol import Described
from flax_transformer.nn import Embedding, EmbeddingConfig, TrunkConfig
from flax_transformer.nn.check import check_widths
from flax_transformer.nn.config import check_at_least, check_fields
from flax_transformer.nn.embedding import SINUSOIDS
from flax_transformer.nn.module import Module
from flax_transformer.ops import Mask, widen
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part
from flax_transformer.parallel import constrain


@frozen
class StoryConfig:
    """Words, sentences made of them, and the trunk that reads these."""

    embedding: EmbeddingConfig
    """Of words, which have no positions but their masks; word 0 is none."""
    trunk: TrunkConfig
    """The encoder of the sentences of a story and its question."""
    words: int = 16
    """W, the most words of a sentence."""
    position: Literal["sinusoidal", "sinusoidal_halves", "sinusoidal_spanning", "none"] = "sinusoidal"
    """How the places of sentences are told before the trunk; none: the trunk tells them itself, or nobody does."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "words")
        check_widths(embedding=self.embedding.width, trunk=self.trunk.block.embed)
        if self.embedding.position != "none":
            raise ValueError(f"words have no positions but their masks, got position={self.embedding.position!r}")
        if self.trunk.cross:
            raise ValueError("a reader of stories attends to no memory, got a block with cross-attention")

    @property
    def block(self) -> Any:
        """That of the trunk."""
        return self.trunk.block

    def build(self, rngs: nnx.Rngs) -> "StoryReader":
        """Make the model."""
        return StoryReader(self, rngs=rngs)


class StoryReader(Module):
    """Hidden states of sentences that all see each other."""

    layer_order = ("embedding", "position", Part("trunk"))

    use = "feature-extraction"

    @classmethod
    def example_batch(cls, config: StoryConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B stories of S sentences, each with a label."""
        S = length or LENGTH
        inputs = {
            "sentences": draw_tokens(config.embedding.vocab, rows, S, config.words),
            "lengths": np.full(rows, S, np.int32),
        }
        return {"inputs": inputs, "labels": np.zeros((rows, S), np.int32), "weights": np.ones((rows, S), np.float32)}

    @classmethod
    def describe_batch(cls, config: StoryConfig, batch: dict[str, Any]) -> Described:
        """Count B · S sentences."""
        rows, length, _ = batch["inputs"]["sentences"].shape
        return Described({"rows": rows, "length": length, "vocab": config.embedding.vocab}, rows * length, "sentences")

    def __init__(self, cfg: StoryConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.embedding = Embedding(cfg.embedding, rngs=rngs)
        kinds = cfg.embedding.precision.dtypes
        self.position = nnx.Embed(
            cfg.words, cfg.embedding.width, embedding_init=nnx.initializers.ones, rngs=rngs, **kinds
        )
        self.trunk = cfg.trunk.make_trunk(rngs=rngs)

    def __call__(
        self, sentences: Int[Array, "*B S W"], *, mask: Mask | None = None, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B S D"]:
        """Read sentences.

        Args:
          mask: what is hidden of them, padding above all.
          key: for dropout; None means none.

        Raises:
          ValueError: sentences of other than W words.
        """
        x, key = self._enter(sentences, key)
        return self.trunk(x, mask=mask, key=key)

    def hidden_states(
        self,
        sentences: Int[Array, "*B S W"],
        *,
        lengths: Int[Array, "*B"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B S D"]:
        """Compute the last hidden states from the inputs of a batch.

        Args:
          lengths: of the rows, in sentences; what comes after is padding.
          key: for dropout; None means none.
        """
        return self(sentences, mask=None if lengths is None else Mask(lengths=lengths), key=key)

    def observe(
        self,
        sentences: Int[Array, "*B S W"],
        *,
        lengths: Int[Array, "*B"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "*B S D"], Any]:
        """Compute `hidden_states`, and beside what the trunk tells, as steps that halt do."""
        x, key = self._enter(sentences, key)
        return self.trunk.observe(x, mask=None if lengths is None else Mask(lengths=lengths), key=key)

    def memory_mask(self, mask: Mask | None) -> Mask | None:
        """Return which positions of the output are padding: those of the input."""
        return mask

    def _enter(self, sentences: Array, key: PRNGKeyArray | None) -> tuple[Array, PRNGKeyArray | None]:
        """Return each sentence as what the trunk reads, and the trunk's key."""
        cfg, keys = self.cfg, split_keys(key)
        if sentences.shape[-1] != cfg.words:
            raise ValueError(f"a sentence must have W={cfg.words} places for words, got shape {sentences.shape}")
        x = widen(self.embedding(sentences, key=keys[0]))
        x = jnp.sum(jnp.where(sentences[..., None] > 0, x * self.position.embedding[...], 0.0), axis=-2)
        if cfg.position != "none":
            x = x + SINUSOIDS[cfg.position](jnp.arange(x.shape[-2]), x.shape[-1])
        return constrain(x.astype(cfg.block.residual.precision.residual), "batch", "length", None), keys[1]
