"""mBART (Liu et al. 2020, https://arxiv.org/abs/2001.08210): a pre-norm BART of many languages.

A source ends with the token of its language, and a target begins with that of its own; mBART-50 (Tang et al. 2020,
https://arxiv.org/abs/2008.00401) has them in front of both.
"""

from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.text.bart import bart_large
from flax_transformer.nn import Precision, with_fields

FLOAT32 = Precision()


def mbart_large_cc25(vocab: int = 250_027, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return mBART large of 25 languages: 12+12 layers, D=1024, 611 M parameters."""
    return with_fields(bart_large(vocab, dropout=dropout, precision=precision), norm_position="pre", scaled=True)


def mbart_large_50(vocab: int = 250_054, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return mBART large of 50 languages, which differs in its vocabulary and activation: 611 M parameters."""
    return with_fields(mbart_large_cc25(vocab, dropout=dropout, precision=precision), activation="relu")
