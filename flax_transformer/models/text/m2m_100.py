"""M2M-100 (Fan et al. 2021, https://arxiv.org/abs/2010.11125): one model that translates 100 languages into each other.

A pre-norm encoder-decoder with fairseq's sinusoids, which begin with the third position, and LayerDrop. NLLB-200 (2022,
https://arxiv.org/abs/2207.04672) is of this shape. A source begins with the token of its language, a target too.
"""

from dataclasses import replace

from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.text.marian import marian
from flax_transformer.nn import Precision, with_fields

FLOAT32 = Precision()


def _m2m(
    vocab: int, *, inner: int, depth: int, layer_drop: float, dropout: float, precision: Precision
) -> Seq2SeqConfig:
    plain = with_fields(
        marian(vocab, dropout=dropout, precision=precision), embed=1024, heads=16, inner=inner, depth=depth,
        activation="relu", norm_position="pre", position="sinusoidal_spanning", offset=2, max_length=1024,
        attention_dropout=dropout, layer_drop=layer_drop,
    )  # fmt: skip
    return replace(plain, output_bias=False)


def m2m100_418m(vocab: int = 128_112, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return the small M2M-100: 12+12 layers, D=1024, 484 M parameters, of which 418 M without one token table."""
    return _m2m(vocab, inner=4096, depth=12, layer_drop=0.05, dropout=dropout, precision=precision)


def m2m100_1_2b(vocab: int = 128_112, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return the middle M2M-100: 24+24 layers, D=1024, F=8192, 1.2 B parameters."""
    return _m2m(vocab, inner=8192, depth=24, layer_drop=0.05, dropout=dropout, precision=precision)


def nllb_200_distilled_600m(
    vocab: int = 256_206, *, dropout: float = 0.1, precision: Precision = FLOAT32
) -> Seq2SeqConfig:
    """Return the smallest NLLB-200: 12+12 layers, D=1024, 615 M parameters."""
    return _m2m(vocab, inner=4096, depth=12, layer_drop=0.0, dropout=dropout, precision=precision)


def nllb_200_1_3b(vocab: int = 256_206, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return NLLB-200 of 1.3 B parameters, distilled or not: 24+24 layers, D=1024, F=8192."""
    return _m2m(vocab, inner=8192, depth=24, layer_drop=0.0, dropout=dropout, precision=precision)
