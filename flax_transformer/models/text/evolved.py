"""The Evolved Transformer in its published sizes (So et al. 2019, https://arxiv.org/abs/1901.11117): 3 cells read and 4
write, where the Transformer of 2017 has 6 layers on each side.

A vocabulary of 33,288 is that of Tensor2Tensor's WMT 2014 English-German, whose counts of parameters the paper tells.
"""

from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.text.evolved_cell import evolved_decoder, evolved_encoder
from flax_transformer.nn import EmbeddingConfig, Precision, TrunkConfig

FLOAT32 = Precision()


def evolved_transformer(
    vocab: int,
    *,
    embed: int,
    heads: int,
    inner: int | None = None,
    depths: tuple[int, int] = (3, 4),
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    precision: Precision = FLOAT32,
) -> Seq2SeqConfig:
    """Return an Evolved Transformer of any size.

    Args:
      inner: F of feed-forward layers, see `nn.evolved.evolved_encoder`; 4 D by default.
      depths: cells of the encoder and of the decoder.
    """
    cell = {
        "embed": embed, "heads": heads, "inner": inner, "dropout": dropout, "attention_dropout": attention_dropout,
        "precision": precision,
    }  # fmt: skip
    return Seq2SeqConfig(
        embedding=EmbeddingConfig(vocab=vocab, embed=embed, dropout=dropout, precision=precision),
        encoder=TrunkConfig(block=evolved_encoder(**cell), depth=depths[0]),
        decoder=TrunkConfig(block=evolved_decoder(**cell), depth=depths[1]),
    )


def evolved_transformer_small(
    vocab: int = 33_288, *, dropout: float = 0.0, precision: Precision = FLOAT32
) -> Seq2SeqConfig:
    """Return the paper's smallest model: D=128, 8 heads, 7.2 M parameters."""
    return evolved_transformer(vocab, embed=128, heads=8, dropout=dropout, precision=precision)


def evolved_transformer_base(
    vocab: int = 33_288, *, dropout: float = 0.1, precision: Precision = FLOAT32
) -> Seq2SeqConfig:
    """Return the paper's base model: D=512, 8 heads, 64.1 M parameters."""
    return evolved_transformer(
        vocab, embed=512, heads=8, dropout=dropout, attention_dropout=0.1, precision=precision
    )  # fmt: skip


def evolved_transformer_big(
    vocab: int = 33_288, *, dropout: float = 0.3, precision: Precision = FLOAT32
) -> Seq2SeqConfig:
    """Return the paper's big model: D=1024, 16 heads, 221.7 M parameters."""
    return evolved_transformer(
        vocab, embed=1024, heads=16, dropout=dropout, attention_dropout=0.1, precision=precision
    )  # fmt: skip
