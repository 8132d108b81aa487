"""Two encoders of texts, one of questions and one of passages, in one space where a passage that answers a question has
a large inner product with it (Karpukhin et al. 2020, https://arxiv.org/abs/2004.04906).

Axes: B rows, C columns, T positions, E width of vectors.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from flax_transformer.frozen import frozen
from flax_transformer.models.protocol import Described
from flax_transformer.models.text.sentence import SentenceEncoder, SentenceEncoderConfig
from flax_transformer.nn.config import check_fields
from flax_transformer.nn.module import Module
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part


@frozen
class TwoEncodersConfig:
    """A sentence encoder for either side, whose vectors have one width."""

    question: SentenceEncoderConfig
    """Of the first text of a row."""
    passage: SentenceEncoderConfig
    """Of the others."""

    def __post_init__(self):
        check_fields(self)
        widths = [side.head.width for side in (self.question, self.passage)]
        if widths[0] != widths[1]:
            raise ValueError(f"both encoders must give vectors of one width, got {widths[0]} and {widths[1]}")

    def build(self, rngs: nnx.Rngs) -> "TwoEncoders":
        """Make the model."""
        return TwoEncoders(self, rngs=rngs)


class SideStates(NamedTuple):
    """Hidden states of either side."""

    questions: Any
    passages: Any


class TwoEncoders(Module):
    """`model.output(model.hidden_states(tokens=…, lengths=…))` are vectors of rows of texts, a question first."""

    layer_order = (Part("question", "passage"),)

    use = "passage-retrieval"

    @classmethod
    def example_batch(cls, config: TwoEncodersConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B questions and their passages."""
        return SentenceEncoder.example_batch(config.question, rows, length)

    @classmethod
    def describe_batch(cls, config: TwoEncodersConfig, batch: dict[str, Any]) -> Described:
        """Count the tokens of all texts."""
        return SentenceEncoder.describe_batch(config.question, batch)

    def __init__(self, cfg: TwoEncodersConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.question = cfg.question.build(rngs)
        self.passage = cfg.passage.build(rngs)

    def hidden_states(self, *, key: PRNGKeyArray | None = None, **inputs: Shaped[Array, "B C ..."]) -> SideStates:
        """Compute hidden states of the first text of each row by the one encoder, of the others by the other.

        Args:
          inputs: as `SentenceEncoder.hidden_states` takes them, with an axis of texts after the rows.
          key: for dropout; None means none.
        """
        keys = split_keys(key)
        first, others = ({name: each[:, part] for name, each in inputs.items()} for part in (slice(1), slice(1, None)))
        return SideStates(
            self.question.hidden_states(**first, key=keys[0]), self.passage.hidden_states(**others, key=keys[1])
        )

    def output(self, hidden: SideStates, *, key: PRNGKeyArray | None = None) -> Float[Array, "B C E"]:
        """Embed all texts."""
        keys = split_keys(key)
        sides = zip((self.question, self.passage), hidden, keys, strict=True)
        return jnp.concatenate([side.output(states, key=each) for side, states, each in sides], axis=1)


def two_encoders(question: SentenceEncoderConfig, passage: SentenceEncoderConfig | None = None) -> TwoEncodersConfig:
    """Put two encoders beside each other; of one form by default."""
    return TwoEncodersConfig(question=question, passage=question if passage is None else passage)
