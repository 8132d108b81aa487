"""BERT (Devlin et al. 2019, https://arxiv.org/abs/1810.04805): a post-norm encoder that guesses masked tokens.

A preset is the model that is pre-trained: masked tokens and next sentences. Of that, `preset.encoder` is the encoder
alone, and `with_head(preset.encoder, outputs=0, pool="first", dense="tanh")` is the encoder with its pooler, whose
parameters are those that are published.
"""

from flax_transformer.models.encoder import EncoderConfig, MaskedLMConfig
from flax_transformer.nn import EmbeddingConfig, Precision, transformer_block

FLOAT32 = Precision()


def _bert(vocab: int, *, embed: int, heads: int, depth: int, dropout: float, precision: Precision) -> MaskedLMConfig:
    encoder = EncoderConfig(
        embedding=EmbeddingConfig(
            vocab=vocab, embed=embed, position="learned", max_length=512, types=2, norm=1e-12,
            scaled=False, dropout=dropout, init_std=0.02, precision=precision,
        ),
        block=transformer_block(
            embed=embed, heads=heads, inner=4 * embed, norm_eps=1e-12, activation="gelu", dropout=dropout,
            attention_dropout=dropout, init_std=0.02, precision=precision,
        ),
        depth=depth,
    )  # fmt: skip
    return MaskedLMConfig(encoder=encoder, next_sentence=True)


def bert_base_uncased(vocab: int = 30_522, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> MaskedLMConfig:
    """Return BERT base, lower-cased: 12 layers, D=768, 109 M parameters with its pooler."""
    return _bert(vocab, embed=768, heads=12, depth=12, dropout=dropout, precision=precision)


def bert_base_cased(vocab: int = 28_996, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> MaskedLMConfig:
    """Return BERT base with case: 12 layers, D=768, 108 M parameters with its pooler."""
    return _bert(vocab, embed=768, heads=12, depth=12, dropout=dropout, precision=precision)


def bert_large_uncased(vocab: int = 30_522, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> MaskedLMConfig:
    """Return BERT large, lower-cased: 24 layers, D=1024, 335 M parameters with its pooler."""
    return _bert(vocab, embed=1024, heads=16, depth=24, dropout=dropout, precision=precision)
