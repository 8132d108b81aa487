"""The Universal Transformer in its published sizes (Dehghani et al. 2019, https://arxiv.org/abs/1807.03819), and an
encoder of that kind."""

from flax_transformer.frozen import frozen
from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.text.universal_trunk import HaltingConfig, UniversalConfig
from flax_transformer.nn import EmbeddingConfig, Precision, transformer_block

FLOAT32 = Precision()


@frozen
class UniversalEncoderConfig(EncoderConfig, UniversalConfig):
    """An embedding, which tells no positions, and one block that all steps share, which is told them at each."""


def _universal(
    vocab: int, *, embed: int, heads: int, inner: int, steps: int, halting: HaltingConfig | None, dropout: float,
    precision: Precision,
) -> Seq2SeqConfig:  # fmt: skip
    block = {"embed": embed, "heads": heads, "inner": inner, "dropout": dropout, "precision": precision}
    side = {"depth": steps, "halting": halting}
    return Seq2SeqConfig(
        embedding=EmbeddingConfig(vocab=vocab, embed=embed, position="none", dropout=dropout, precision=precision),
        encoder=UniversalConfig(block=transformer_block(**block), **side),
        decoder=UniversalConfig(block=transformer_block(**block, cross=True), **side),
    )


def universal_tiny(vocab: int = 9_712, *, dropout: float = 0.3, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return a model of about as many parameters as `transformer_tiny`: 4 steps on each side, D=192, F=256, 4 heads."""
    return _universal(vocab, embed=192, heads=4, inner=256, steps=4, halting=None, dropout=dropout, precision=precision)


def universal_base(vocab: int = 37_000, *, dropout: float = 0.3, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return the base model of translation: 6 steps on each side, D=1024, F=4096, 16 heads.

    Its one block on each side has about as many parameters as the six of `transformer_base`.
    """
    return _universal(
        vocab, embed=1024, heads=16, inner=4096, steps=6, halting=None, dropout=dropout, precision=precision
    )


def universal_adaptive(vocab: int = 37_000, *, dropout: float = 0.3, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return the base model with positions that halt, after 12 steps at the latest, as the authors' code has it."""
    return _universal(
        vocab, embed=1024, heads=16, inner=4096, steps=12, halting=HaltingConfig(), dropout=dropout,
        precision=precision,
    )  # fmt: skip
