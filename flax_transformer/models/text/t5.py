"""T5 (Raffel et al. 2020, https://arxiv.org/abs/1910.10683): every task is text to text.

A pre-norm encoder and decoder with relative positions, RMSNorm and no biases. Version 1.1, whose weights FLAN's are
too, has a gated feed-forward layer and an output layer of its own (Shazeer 2020, https://arxiv.org/abs/2002.05202).
"""

from dataclasses import replace
from typing import Any

from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.nn import EmbeddingConfig, Precision, RelativeConfig, TrunkConfig, transformer_block

FLOAT32 = Precision()


def _t5(
    vocab: int, *, embed: int, heads: int, inner: int, depth: int, dropout: float, precision: Precision,
    **feedforward: Any,
) -> Seq2SeqConfig:  # fmt: skip
    precision = replace(precision, wide_residual=True)
    block = {
        "embed": embed, "heads": heads, "head_width": 64, "inner": inner, "norm": "rms", "norm_position": "pre",
        "norm_eps": 1e-6, "bias": False, "scale": 1.0, "dropout": dropout, "attention_dropout": dropout,
        "activation_dropout": dropout, "precision": precision, **feedforward,
    }  # fmt: skip
    trunk = {"depth": depth, "relative": RelativeConfig()}
    return Seq2SeqConfig(
        embedding=EmbeddingConfig(
            vocab=vocab, embed=embed, position="none", scaled=False, dropout=dropout, init_std=1.0, precision=precision
        ),
        encoder=TrunkConfig(block=transformer_block(**block), **trunk),
        decoder=TrunkConfig(block=transformer_block(**block, cross=True), **trunk),
        output_scale=embed**-0.5,
    )


def _v1_1(vocab: int, **sizes: Any) -> Seq2SeqConfig:
    return replace(_t5(vocab, activation="gelu_tanh", gated=True, **sizes), tied_output=False, output_scale=1.0)


def t5_small(vocab: int = 32_128, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return T5 small: 6+6 layers, D=512, 61 M parameters."""
    return _t5(vocab, embed=512, heads=8, inner=2048, depth=6, dropout=dropout, precision=precision)


def t5_base(vocab: int = 32_128, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return T5 base: 12+12 layers, D=768, 223 M parameters."""
    return _t5(vocab, embed=768, heads=12, inner=3072, depth=12, dropout=dropout, precision=precision)


def t5_large(vocab: int = 32_128, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return T5 large: 24+24 layers, D=1024, 738 M parameters."""
    return _t5(vocab, embed=1024, heads=16, inner=4096, depth=24, dropout=dropout, precision=precision)


def t5_v1_1_small(vocab: int = 32_128, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return T5 1.1 small, the shape of FLAN-T5 small: 8+8 layers, D=512, 77 M parameters."""
    return _v1_1(vocab, embed=512, heads=6, inner=1024, depth=8, dropout=dropout, precision=precision)


def t5_v1_1_base(vocab: int = 32_128, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return T5 1.1 base, the shape of FLAN-T5 base: 12+12 layers, D=768, 248 M parameters."""
    return _v1_1(vocab, embed=768, heads=12, inner=2048, depth=12, dropout=dropout, precision=precision)


def t5_v1_1_large(vocab: int = 32_128, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return T5 1.1 large, the shape of FLAN-T5 large: 24+24 layers, D=1024, 783 M parameters."""
    return _v1_1(vocab, embed=1024, heads=16, inner=2816, depth=24, dropout=dropout, precision=precision)
