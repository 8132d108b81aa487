"""The conditional masked language model: an encoder-decoder whose decoder sees all of a target, some of it masked
(Ghazvininejad et al. 2019, https://arxiv.org/abs/1904.09324).

Axes: B batch, S source positions, T target positions, D width, W lengths tried, E lengths there are, with 0.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.decode import Decoded, Parallel, mask_predict
from flax_transformer.frozen import frozen
from flax_transformer.models.example import LENGTH
from flax_transformer.models.non_autoregressive import NonAutoregressive
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.text.transformer import FLOAT32, transformer_base, transformer_tiny
from flax_transformer.nn import PerLayer, Precision
from flax_transformer.nn.config import check_at_least
from flax_transformer.nn.linear import axes_metadata
from flax_transformer.ops import Mask, lookup, multiply_rows, widen
from flax_transformer.ops.split_keys import split_keys

SURELY_NOT = -1e9
"""Score of the length 0: finite, so that its gradient is a number."""


@frozen
class ConditionalMaskedConfig(Seq2SeqConfig):
    """An encoder-decoder of tokens, and how long its targets may be."""

    longest: int = 256
    """Tokens of a target at most: the length predictor knows 1 to this many."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "longest")
        if not self.embeds_source or self.decoder.relative is not None:
            raise ValueError(
                "a conditional masked language model reads tokens, and its decoder has no relative positions, got "
                f"{type(self.encoder).__name__} and relative={self.decoder.relative}"
            )

    def build(self, rngs: nnx.Rngs) -> "ConditionalMasked":
        """Make the model."""
        return ConditionalMasked(self, rngs=rngs)


class ConditionalMasked(NonAutoregressive):
    """`read` a source, `decode` a target that is masked in part; `write` translates by mask-predict.

    The encoder reads a token of its own before the source, whose output tells how long the target is; the decoder does
    not look at it. All tokens are decoded at once, so there is no cache.
    """

    layer_order = ("length", *NonAutoregressive.layer_order)

    use = "mask-predict"
    front = ("[LENGTH]",)

    @classmethod
    def example_batch(cls, config: ConditionalMaskedConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch as other encoder-decoders'; none of its targets ends in padding."""
        batch = super().example_batch(config, rows, min(length or LENGTH, config.longest))
        lengths = np.full(rows, batch["labels"].shape[1], np.int32)
        return {**batch, "inputs": {**batch["inputs"], "target_lengths": lengths}}

    def __init__(self, cfg: ConditionalMaskedConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        init = nnx.initializers.normal(cfg.embedding.width**-0.5)
        kinds = cfg.embedding.precision.dtypes
        self.length = nnx.Embed(
            cfg.longest + 1, cfg.embedding.width, embedding_init=init,
            embedding_metadata=axes_metadata((None, "embed")), rngs=rngs, **kinds,
        )  # fmt: skip

    def encode(
        self, source: Int[Array, "*B S"], lengths: Int[Array, "*B"] | None = None, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B _ D"]:
        """Encode a source into S + 1 positions, of which the first tells the length of the target.

        Args:
          lengths: of the source; positions from there on are padding.
          key: for dropout; None means none.
        """
        x, given = self._source(source, None if lengths is None else lengths + 1, key)
        first = lookup(self._lengths(), jnp.zeros((*source.shape[:-1], 1), jnp.int32)) * x.shape[-1] ** 0.5
        return self.encoder(jnp.concatenate([first.astype(x.dtype), x], axis=-2), **given)

    def _lengths(self) -> Float[Array, "E D"]:
        return self.length.embedding[...].astype(self.length.dtype)

    def length_scores(self, memory: Float[Array, "*B _ D"]) -> Float[Array, "*B E"]:
        """Score every length that a target may have, from what `encode` gives: unnormalised, and 0 never."""
        scores = widen(multiply_rows(self._lengths(), memory[..., :1, :].astype(self.length.dtype))[..., 0, :])
        return jnp.where(jnp.arange(scores.shape[-1]) == 0, SURELY_NOT, scores)

    def decode(
        self,
        target: Int[Array, "*B T"],
        memory: Float[Array, "*B _ D"] | PerLayer,
        lengths: Int[Array, "..."] | None = None,
        *,
        target_lengths: Int[Array, "*B"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Compute the decoder's hidden states of a target, every position of which sees all.

        Args:
          memory: what `encode` gives; or what `project` does, of several lengths a source.
          lengths: of the source.
          target_lengths: positions from there on are padding.
          key: for dropout; None means none.
        """
        keys = split_keys(key)
        x = self.embedding(target, key=keys[0])
        memory = memory if isinstance(memory, PerLayer) else memory[..., 1:, :]
        mask, memory_mask = (None if each is None else Mask(lengths=each) for each in (target_lengths, lengths))
        return self.decoder(x, memory, mask=mask, memory_mask=memory_mask, key=keys[1])

    def hidden_states(
        self,
        source: Int[Array, "*B S"],
        target: Int[Array, "*B T"],
        *,
        lengths: Int[Array, "*B"] | None = None,
        target_lengths: Int[Array, "*B"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Compute the decoder's hidden states from the inputs of a batch.

        Args:
          target: tokens, some of them masked; not shifted.
          lengths: of the source.
          target_lengths: of the target.
          key: for dropout; None means none.
        """
        keys = split_keys(key)
        memory = self.encode(source, lengths, key=keys[0])
        return self.decode(target, memory, lengths, target_lengths=target_lengths, key=keys[1])

    def write(self, source: Int[Array, "B S"], lengths: Int[Array, "B"] | None, config: Parallel) -> Decoded:
        """Translate a batch by mask-predict; the `beams` likeliest lengths are tried of each.

        Args:
          lengths: of the source; None: all of it counts.

        Raises:
          ValueError: more beams than the model knows lengths.
        """
        memory = self.encode(source, lengths)
        known = min(config.max_length, self.cfg.longest)
        if config.beams > known:
            raise ValueError(f"there must be as many lengths as beams, got beams={config.beams}, {known} lengths")
        tried = jax.lax.top_k(self.length_scores(memory)[:, 1 : known + 1], config.beams)[1] + 1
        seen = PerLayer(self.decoder.project(memory[:, 1:], beams=config.beams))

        def predict(tokens: Array, rows: Array) -> Array:
            return self.output(self.decode(tokens, seen, lengths, target_lengths=rows)).logits()

        return mask_predict(predict, tried, config)


def _masked(config: Seq2SeqConfig, longest: int) -> ConditionalMaskedConfig:
    given = {name: getattr(config, name) for name in config.__dataclass_fields__}
    return ConditionalMaskedConfig(**given, longest=longest)


def mask_predict_tiny(
    vocab: int = 9_712, *, dropout: float = 0.3, longest: int = 128, precision: Precision = FLOAT32
) -> ConditionalMaskedConfig:
    """Return a small model for Multi30k: `transformer_tiny`, whose decoder sees all, and lengths up to 128."""
    return _masked(transformer_tiny(vocab, dropout=dropout, precision=precision), longest)


def mask_predict_base(
    vocab: int = 37_000, *, dropout: float = 0.3, longest: int = 1024, precision: Precision = FLOAT32
) -> ConditionalMaskedConfig:
    """Return the paper's model: `transformer_base`, whose decoder sees all, and lengths up to 1,024."""
    return _masked(transformer_base(vocab, dropout=dropout, precision=precision), longest)
