"""BART (Lewis et al. 2020, https://arxiv.org/abs/1910.13461): a post-norm encoder-decoder that restores damaged text.

Both sides have learned positions, beginning with the third row of their table, and a norm after the embeddings.
"""

from dataclasses import replace

from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.nn import EmbeddingConfig, Precision, TrunkConfig, transformer_block

FLOAT32 = Precision()


def _bart(vocab: int, *, embed: int, heads: int, depth: int, dropout: float, precision: Precision) -> Seq2SeqConfig:
    block = {
        "embed": embed, "heads": heads, "inner": 4 * embed, "activation": "gelu", "dropout": dropout,
        "attention_dropout": dropout, "activation_dropout": dropout, "init_std": 0.02, "precision": precision,
    }  # fmt: skip
    embedding = EmbeddingConfig(
        vocab=vocab, embed=embed, position="learned", max_length=1024, offset=2, norm=1e-5, scaled=False,
        dropout=dropout, init_std=0.02, precision=precision,
    )  # fmt: skip
    return Seq2SeqConfig(
        embedding=embedding,
        source_embedding=replace(embedding, own_table=False),
        encoder=TrunkConfig(block=transformer_block(**block), depth=depth),
        decoder=TrunkConfig(block=transformer_block(**block, cross=True), depth=depth),
    )


def bart_base(vocab: int = 50_265, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return BART base: 6+6 layers, D=768, 139 M parameters."""
    return _bart(vocab, embed=768, heads=12, depth=6, dropout=dropout, precision=precision)


def bart_large(vocab: int = 50_265, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return BART large: 12+12 layers, D=1024, 406 M parameters."""
    return _bart(vocab, embed=1024, heads=16, depth=12, dropout=dropout, precision=precision)
