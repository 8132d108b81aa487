"""Longformer (Beltagy et al. 2020, https://arxiv.org/abs/2004.05150): windows of attention, and tokens that all see.

A RoBERTa whose tokens see those near them, and a few global tokens, which see everything and are seen by all, by
queries, keys and values of their own. A preset is the model that is pre-trained on masked tokens; its published sizes
are those of `with_head(preset.encoder, outputs=0, pool="first", dense="tanh")`, the encoder with a pooler.
Axes: B batch, T positions, G global tokens, D width.
"""

from dataclasses import replace

from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.encoder import Encoder, EncoderConfig, MaskedLMConfig
from flax_transformer.models.text.global_attention import GlobalAttentionConfig, GlobalTrunkConfig
from flax_transformer.nn import EmbeddingConfig, Precision, transformer_block
from flax_transformer.ops import Mask

FLOAT32 = Precision()


@frozen
class LongformerConfig(GlobalTrunkConfig, EncoderConfig):
    """An encoder whose layers see windows; its block's attention is a `GlobalAttentionConfig`."""

    def build(self, rngs: nnx.Rngs) -> "Longformer":
        """Make the encoder."""
        return Longformer(self, rngs=rngs)


class Longformer(Encoder):
    """Hidden states of tokens that see those near them, and of global tokens that see all."""

    def __call__(
        self,
        tokens: Int[Array, "*B T"],
        *,
        mask: Mask | None = None,
        types: Int[Array, "*#B T"] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        global_positions: Int[Array, "*#B G"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Encode tokens.

        Args:
          mask: which of them are padding.
          types, positions: as an `Encoder`'s.
          global_positions: positions of global tokens; −1 where a row has fewer than others. None: the leading ones.
          key: for dropout; None means none.

        Raises:
          ValueError: shapes that do not fit, or places that the text has not; of places that are not known yet, in a
            transform, NaN comes.
        """
        x, given = self._enter(tokens, mask, types, positions, key)
        return self.trunk(x, **{**given, "positions": None}, global_positions=global_positions)

    def hidden_states(
        self,
        tokens: Int[Array, "*B T"],
        *,
        lengths: Int[Array, "*B"] | None = None,
        types: Int[Array, "*#B T"] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        global_positions: Int[Array, "*#B G"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Compute the last hidden states from the inputs of a batch.

        Args:
          lengths: of the rows; what comes after is padding, which nobody sees.
          types, positions, global_positions: as a call takes them.
          key: for dropout; None means none.
        """
        mask = None if lengths is None else Mask(lengths=lengths)
        return self(tokens, mask=mask, types=types, positions=positions, global_positions=global_positions, key=key)


def longformer_encoder(
    vocab: int,
    *,
    embed: int,
    heads: int,
    depth: int,
    max_length: int,
    windows: tuple[int, ...] = (512,),
    dropout: float = 0.1,
    precision: Precision = FLOAT32,
) -> LongformerConfig:
    """Make the config of an encoder; its padding token is 1, as RoBERTa's.

    Args:
      windows: of each layer in turn.
    """
    plain = transformer_block(
        embed=embed, heads=heads, inner=4 * embed, activation="gelu", dropout=dropout, attention_dropout=dropout,
        init_std=0.02, precision=precision,
    )  # fmt: skip
    return LongformerConfig(
        embedding=EmbeddingConfig(
            vocab=vocab, embed=embed, position="learned", max_length=max_length, offset=2, types=1, norm=1e-5,
            scaled=False, dropout=dropout, init_std=0.02, precision=precision,
        ),
        block=replace(plain, attention=GlobalAttentionConfig.like(plain.attention)),
        depth=depth,
        windows=windows,
    )  # fmt: skip


def longformer_base_4096(
    vocab: int = 50_265, *, dropout: float = 0.1, precision: Precision = FLOAT32
) -> MaskedLMConfig:
    """Return Longformer base: 12 layers, D=768, windows of 512, 4096 positions, 149 M parameters with a pooler."""
    encoder = longformer_encoder(
        vocab, embed=768, heads=12, depth=12, max_length=4096, dropout=dropout, precision=precision
    )
    return MaskedLMConfig(encoder=encoder, activation="gelu")


def longformer_large_4096(
    vocab: int = 50_265, *, dropout: float = 0.1, precision: Precision = FLOAT32
) -> MaskedLMConfig:
    """Return Longformer large: 24 layers, D=1024, windows of 512, 4096 positions, 435 M parameters with a pooler."""
    encoder = longformer_encoder(
        vocab, embed=1024, heads=16, depth=24, max_length=4096, dropout=dropout, precision=precision
    )
    return MaskedLMConfig(encoder=encoder, activation="gelu")
