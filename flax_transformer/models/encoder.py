"""An encoder: BERT, RoBERTa, DistilBERT and their kin are choices of its config; and its head for masked tokens.

Axes: B batch, T positions, S positions of a memory, or those and what an encoder sees beside a text, W width of a
memory, D width, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import ReadsTokens
from flax_transformer.models.head import Head, head_of
from flax_transformer.models.output import Output, OutputDense, output_table
from flax_transformer.models.preset import module_of
from flax_transformer.models.protocol import Described
from flax_transformer.nn import Cycle, Embedding, EmbeddingConfig, OutputTable, TrunkConfig
from flax_transformer.nn.check import check_positions, check_widths
from flax_transformer.nn.config import check_fields
from flax_transformer.nn.module import Module
from flax_transformer.ops import Mask, activation
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part


@frozen
class EncoderConfig(TrunkConfig):
    """A trunk that sees everything, and an embedding before it."""

    embedding: EmbeddingConfig
    """Embeddings of tokens and positions."""

    def __post_init__(self):
        super().__post_init__()
        check_widths(embedding=self.embedding.width, block=self.block.embed)

    def build(self, rngs: nnx.Rngs) -> "Encoder":
        """Make the encoder."""
        return Encoder(self, rngs=rngs)


class Encoder(ReadsTokens, Module):
    """Hidden states of tokens that all see each other, and a memory where the blocks attend to one."""

    layer_order = ("embedding", Part("trunk"))

    use = "feature-extraction"

    def __init__(self, cfg: EncoderConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.embedding = Embedding(cfg.embedding, rngs=rngs)
        self.trunk = cfg.make_trunk(rngs=rngs)

    def __call__(
        self,
        tokens: Int[Array, "*B T"],
        memory: Float[Array, "*M S W"] | None = None,
        *,
        mask: Mask | None = None,
        types: Int[Array, "*#B T"] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Encode tokens.

        Args:
          memory: what cross-attention looks at, an image's states, say; all of it is seen.
          mask: what is hidden, padding above all.
          types: of the tokens: 0 in the first sentence, 1 in the second.
          positions: of the tokens; 0, 1, … by default.
          key: for dropout; None means none.

        Raises:
          ValueError: positions for a model that has no use for them, or a memory for one without cross-attention.
        """
        x, given = self._enter(tokens, mask, types, positions, key)
        return self.trunk(x, memory, **given)

    def _enter(
        self, tokens: Array, mask: Mask | None, types: Array | None, positions: Array | None, key: PRNGKeyArray | None
    ) -> tuple[Array, dict[str, Any]]:
        """Return embedded tokens, and what else the trunk is given."""
        check_positions(positions, self.cfg)
        keys = split_keys(key)
        x = self.embedding(tokens, positions=positions, types=types, key=keys[0])
        return x, {"mask": mask, "positions": positions, "key": keys[1]}

    def memory_mask(self, mask: Mask | None) -> Mask | None:
        """Return which positions of the output are padding: those of the input."""
        return mask

    def hidden_states(
        self,
        tokens: Int[Array, "*B T"],
        *,
        lengths: Int[Array, "*B"] | None = None,
        segments: Int[Array, "*#B T"] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        types: Int[Array, "*#B T"] | None = None,
        memory: Float[Array, "*M S W"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Compute the last hidden states from the inputs of a batch.

        Args:
          lengths: of the rows; what comes after is padding, which nobody sees.
          segments: numbers of the documents packed in a row; tokens see those of their own alone.
          positions: of the tokens; 0, 1, … by default.
          types, memory: as a call takes them.
          key: for dropout; None means none.
        """
        return self(tokens, memory, mask=_mask(lengths, segments), types=types, positions=positions, key=key)

    def observe(
        self,
        tokens: Int[Array, "*B T"],
        *,
        lengths: Int[Array, "*B"] | None = None,
        segments: Int[Array, "*#B T"] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        types: Int[Array, "*#B T"] | None = None,
        memory: Float[Array, "*M S W"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "*B T D"], Any]:
        """Compute `hidden_states`, and beside what the trunk tells, as the routers of experts do."""
        x, given = self._enter(tokens, _mask(lengths, segments), types, positions, key)
        return self.trunk.observe(x, memory, **given)


@frozen
class WindowedEncoderConfig(EncoderConfig):
    """An encoder whose layers see windows, or take turns at windows and all positions, by their blocks' attention."""

    windows: tuple[int | None, ...] = (64, None)
    """How many positions to either side each sees, beside its own; None: all. Of several the layers take turns; rotary
    positions may be others with a window: see `Rotary.window`."""

    def __post_init__(self):
        super().__post_init__()
        if not self.windows or any(window is not None and window < 0 for window in self.windows):
            raise ValueError(f"windows must be at least 0, or None, and one at least, got {self.windows}")

    def build(self, rngs: nnx.Rngs) -> "WindowedEncoder":
        """Make the encoder."""
        return WindowedEncoder(self, rngs=rngs)


class WindowedEncoder(Encoder):
    """Hidden states of tokens that see those near them, in some layers or in all."""

    def _enter(
        self, tokens: Array, mask: Mask | None, types: Array | None, positions: Array | None, key: PRNGKeyArray | None
    ) -> tuple[Array, dict[str, Any]]:
        x, given = super()._enter(tokens, mask, types, positions, key)
        return x, {**given, "mask": Cycle.of(self.cfg.windows, lambda window: Mask(window=window) & mask)}


def _mask(lengths: Array | None, segments: Array | None) -> Mask | None:
    mask = None if lengths is None else Mask(lengths=lengths)
    return mask if segments is None else Mask(segments=(segments, segments)) & mask


@frozen
class MaskedLMConfig:
    """An encoder that guesses masked tokens (Devlin et al. 2019, https://arxiv.org/abs/1810.04805)."""

    encoder: Any
    """An `EncoderConfig`, or another with its `embedding` and `block`, of an encoder that reads tokens and more."""
    activation: str | None = None
    """After the dense layer; None: that of the encoder's blocks."""
    dense_bias: bool = True
    """Whether the dense layer adds a bias."""
    tied_output: bool = True
    """Whether the output layer is the embedding table."""
    output_bias: bool = True
    """Whether the output layer adds a bias for each token."""
    next_sentence: bool = False
    """Whether it also guesses, from the first token, if one sentence follows the other."""

    def __post_init__(self):
        check_fields(self)
        if missing := [name for name in ("embedding", "block", "build") if not hasattr(self.encoder, name)]:
            raise ValueError(
                f"encoder must be the config of an encoder of tokens, got {type(self.encoder).__name__}, which has no "
                f"{', '.join(missing)}"
            )
        activation(self.resolved_activation)

    @property
    def resolved_activation(self) -> str | Callable:
        """The activation after the dense layer, resolved."""
        return self.encoder.block.feedforward.activation if self.activation is None else self.activation

    def build(self, rngs: nnx.Rngs) -> "MaskedLM":
        """Make the model."""
        return MaskedLM(self, rngs=rngs)


class MaskedLM(OutputDense, ReadsTokens, Module):
    """A dense layer, its activation and norm, and an output layer, by default the embedding table."""

    layer_order = (Part("encoder"), "dense", "norm", "output_bias", "head", "sentence")

    use = "fill-mask"

    @classmethod
    def example_batch(cls, config: MaskedLMConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B rows of T tokens; every seventh is masked, about as many as BERT does."""
        batch = module_of(config.encoder).example_batch(config.encoder, rows, length)
        positions = np.tile(np.arange(0, batch["labels"].shape[1], 7, dtype=np.int32), (rows, 1))
        chosen = {name: np.take_along_axis(batch[name], positions, axis=1) for name in ("labels", "weights")}
        return {**batch, **chosen, "positions": positions}

    @classmethod
    def describe_batch(cls, config: MaskedLMConfig, batch: dict[str, Any]) -> Described:
        """Count B · T tokens, masked or not."""
        return module_of(config.encoder).describe_batch(config.encoder, batch)

    def __init__(self, cfg: MaskedLMConfig, *, rngs: nnx.Rngs):
        embedding = cfg.encoder.embedding
        self.cfg = cfg
        self.encoder = cfg.encoder.build(rngs)
        self.init_dense(cfg.encoder.block, embedding.embed, bias=cfg.dense_bias, rngs=rngs)
        dtypes = cfg.encoder.block.feedforward.precision.dtypes
        if not cfg.tied_output:
            self.head = OutputTable(output_table(embedding), rngs=rngs)
        if cfg.output_bias:
            place = self if cfg.tied_output else self.head
            place.output_bias = nnx.Param(jnp.zeros(embedding.vocab, dtypes["param_dtype"]))
        if cfg.next_sentence:
            self.sentence = Head(head_of(cfg.encoder, outputs=2, pool="first", dense="tanh"), rngs=rngs)

    def hidden_states(self, tokens: Int[Array, "*B T"], **inputs: Any) -> Float[Array, "*B S D"]:
        """Compute the encoder's hidden states, of the tokens first, from the inputs of a batch, which are its own."""
        return self.encoder.hidden_states(tokens, **inputs)

    def output(self, hidden: Float[Array, "*B T D"]) -> Output:
        """Return what logits of the tokens at those positions are made of."""
        x = self.through_dense(hidden, self.cfg.resolved_activation)
        place, table = (self, self.encoder.embedding) if self.cfg.tied_output else (self.head, self.head)
        return Output(x, table, place.output_bias[...] if self.cfg.output_bias else None)

    def __call__(
        self,
        tokens: Int[Array, "*B T"],
        *,
        mask: Mask | None = None,
        types: Int[Array, "*#B T"] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T V"]:
        """Compute the logits of the token at each position; arguments as `Encoder`'s."""
        return self.output(self.encoder(tokens, mask=mask, types=types, positions=positions, key=key)).logits()
