"""The Transformer of 2017 in its published sizes (Vaswani et al., "Attention Is All You Need")."""

from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.nn import EmbeddingConfig, Precision, TrunkConfig, transformer_block

FLOAT32 = Precision()


def _paper(
    vocab: int, *, embed: int, heads: int, inner: int, depth: int, dropout: float, precision: Precision
) -> Seq2SeqConfig:
    block = {"embed": embed, "heads": heads, "inner": inner, "dropout": dropout, "precision": precision}
    return Seq2SeqConfig(
        embedding=EmbeddingConfig(vocab=vocab, embed=embed, dropout=dropout, precision=precision),
        encoder=TrunkConfig(block=transformer_block(**block), depth=depth),
        decoder=TrunkConfig(block=transformer_block(**block, cross=True), depth=depth),
    )


def transformer_tiny(vocab: int = 9_712, *, dropout: float = 0.3, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return the small model of Wu et al. 2021 for Multi30k: 4+4 layers, D=128, F=256, 4 heads."""
    return _paper(vocab, embed=128, heads=4, inner=256, depth=4, dropout=dropout, precision=precision)


def transformer_base(vocab: int = 37_000, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return the paper's base model: 6+6 layers, D=512, F=2048, 8 heads."""
    return _paper(vocab, embed=512, heads=8, inner=2048, depth=6, dropout=dropout, precision=precision)


def transformer_big(vocab: int = 37_000, *, dropout: float = 0.3, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return the paper's big model: 6+6 layers, D=1024, F=4096, 16 heads; its English-French one had dropout 0.1."""
    return _paper(vocab, embed=1024, heads=16, inner=4096, depth=6, dropout=dropout, precision=precision)
