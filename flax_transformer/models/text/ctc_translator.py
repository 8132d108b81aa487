"""Translation in one pass by connectionist temporal classification: every source position becomes k, each of which
writes a token or none (Libovický & Helcl 2018, https://arxiv.org/abs/1811.04719; Saharia et al. 2020,
https://arxiv.org/abs/2004.07437).

Axes: B batch, S source positions, D width, V vocabulary; k·S positions write.
"""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.decode import Decoded, Parallel, best_path
from flax_transformer.frozen import frozen
from flax_transformer.models.non_autoregressive import NonAutoregressive
from flax_transformer.models.output import Output
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.text.transformer import FLOAT32, transformer_base, transformer_tiny
from flax_transformer.nn import Precision
from flax_transformer.nn.config import check_at_least
from flax_transformer.nn.embedding import SINUSOIDS
from flax_transformer.nn.linear import Linear
from flax_transformer.ops import Mask, widen
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part


@frozen
class CTCTranslatorConfig(Seq2SeqConfig):
    """An encoder of tokens, and a second stack that reads what it gives, k positions for each."""

    spread: int = 3
    """k, positions that write for each that is read: a target must not be longer than they are."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "spread")
        if not self.embeds_source or self.decoder.relative is not None:
            raise ValueError(
                "a translator by CTC reads tokens, and its second stack has no relative positions, got "
                f"{type(self.encoder).__name__} and relative={self.decoder.relative}"
            )

    def build(self, rngs: nnx.Rngs) -> "CTCTranslator":
        """Make the model."""
        return CTCTranslator(self, rngs=rngs)


class CTCTranslator(NonAutoregressive):
    """Scores of every token, and of none, at k positions for each of the source; `write` takes the best of each.

    Between the two stacks a linear layer splits every state into k (Libovický & Helcl, section 3); positions are added
    again, and the second stack sees all of both. No target is read, so there is no cache.
    """

    layer_order = ("embedding", Part("encoder"), "split", Part("decoder"), "head", "output_bias")

    use = "ctc-generation"

    @classmethod
    def example_batch(cls, config: CTCTranslatorConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B sources of T tokens and as many targets, which are only labels."""
        batch = super().example_batch(config, rows, length)
        inputs = {name: value for name, value in batch["inputs"].items() if name != "target"}
        return {**batch, "inputs": inputs}

    @classmethod
    def describe_batch(cls, config: CTCTranslatorConfig, batch: dict[str, Any]) -> Any:
        """Count B · T tokens of the target."""
        return super().describe_batch(config, {**batch, "inputs": {**batch["inputs"], "target": batch["labels"]}})

    def __init__(self, cfg: CTCTranslatorConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        width = cfg.decoder.block.embed
        kinds = cfg.embedding.precision.dtypes
        self.split = Linear(width, cfg.spread * width, rngs=rngs, **kinds)

    def decode(self, *arguments: Any, **options: Any) -> Any:
        """Refuse: nothing that was written is read."""
        raise ValueError("a translator by CTC reads no target, got one")

    def hidden_states(
        self,
        source: Int[Array, "*B S"],
        target: Int[Array, "*B T"] | None = None,
        *,
        lengths: Int[Array, "*B"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B _ D"]:
        """Compute the hidden states of the k·S positions that write.

        Args:
          target: what other encoder-decoders read in training; it is not looked at.
          lengths: of the source; positions from there on are padding.
          key: for dropout; None means none.
        """
        keys = split_keys(key)
        memory = self.encode(source, lengths, key=keys[0])
        *batch, S, D = memory.shape
        x = widen(self.split(memory).reshape(*batch, S * self.cfg.spread, D))
        kind = self.cfg.embedding.position
        if kind in SINUSOIDS:
            x = x + SINUSOIDS[kind](jnp.arange(x.shape[-2]), D)
        seen = None if lengths is None else Mask(lengths=lengths)
        return self.decoder(x.astype(memory.dtype), memory, mask=self.memory_mask(seen), memory_mask=seen, key=keys[1])

    def memory_mask(self, mask: Mask | None) -> Mask | None:
        """Return how many positions write, given how many tokens a source has: `Mask(lengths=…)`."""
        return None if mask is None else Mask(lengths=mask.lengths * self.cfg.spread)

    def output(self, hidden: Float[Array, "*B T D"], *, key: PRNGKeyArray | None = None) -> Output:
        """Return what scores of every token, and of none, are made of; nothing is dropped here."""
        return super().output(hidden)

    def __call__(
        self,
        source: Int[Array, "*B S"],
        lengths: Int[Array, "*B"] | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B _ V"]:
        """Compute logits of every position that writes; arguments as `hidden_states`'."""
        return self.output(self.hidden_states(source, lengths=lengths, key=key)).logits()

    def write(self, source: Int[Array, "B S"], lengths: Int[Array, "B"] | None, config: Parallel) -> Decoded:
        """Translate a batch by the best token of each position; padding stands for none.

        Args:
          lengths: of the source; None: all of it counts.

        Raises:
          ValueError: several passes or hypotheses, where there is one.
        """
        if (config.iterations, config.beams) != (1, 1):
            raise ValueError(
                "a translator by CTC writes in one pass, and one hypothesis, got "
                f"iterations={config.iterations}, beams={config.beams}"
            )
        logits = self(source, lengths)
        counts = jnp.full(len(source), source.shape[1]) if lengths is None else lengths
        return best_path(logits, counts * self.cfg.spread, blank=config.pad, pad=config.pad)


def _aligned(config: Seq2SeqConfig, spread: int) -> CTCTranslatorConfig:
    given = {name: getattr(config, name) for name in config.__dataclass_fields__}
    return CTCTranslatorConfig(**given, spread=spread)


def ctc_translator_tiny(
    vocab: int = 9_712, *, dropout: float = 0.3, spread: int = 3, precision: Precision = FLOAT32
) -> CTCTranslatorConfig:
    """Return a small model for Multi30k: the stacks of `transformer_tiny`, three positions for each source token."""
    return _aligned(transformer_tiny(vocab, dropout=dropout, precision=precision), spread)


def ctc_translator_base(
    vocab: int = 37_000, *, dropout: float = 0.1, spread: int = 3, precision: Precision = FLOAT32
) -> CTCTranslatorConfig:
    """Return the size of Libovický & Helcl 2018: six layers on each side, D=512, three positions for each token."""
    return _aligned(transformer_base(vocab, dropout=dropout, precision=precision), spread)
