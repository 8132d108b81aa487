"""PEGASUS (Zhang et al. 2020, https://arxiv.org/abs/1912.08777): pre-trained to write sentences that a text lacks.

A pre-norm encoder-decoder with Marian's sinusoids, which writes summaries.
"""

from dataclasses import replace

from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.text.marian import marian
from flax_transformer.nn import Precision, with_fields

FLOAT32 = Precision()


def pegasus_large(vocab: int = 96_103, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return PEGASUS large: 16+16 layers, D=1024, 569 M parameters."""
    plain = with_fields(
        marian(vocab, dropout=dropout, precision=precision), embed=1024, heads=16, inner=4096, depth=16,
        activation="relu", norm_position="pre", max_length=1024, attention_dropout=dropout, activation_dropout=dropout,
    )  # fmt: skip
    return replace(plain, output_bias=False)
