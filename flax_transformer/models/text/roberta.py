"""RoBERTa (Liu et al. 2019, https://arxiv.org/abs/1907.11692): BERT without next sentences, and with one type of token.

A preset is the model that is pre-trained on masked tokens; as for BERT, published sizes are those of
`with_head(preset.encoder, outputs=0, pool="first", dense="tanh")`, the encoder with a pooler.
Axes: B batch, T positions.
"""

import jax.numpy as jnp
from jaxtyping import Array, Int

from flax_transformer.models.encoder import EncoderConfig, MaskedLMConfig
from flax_transformer.nn import EmbeddingConfig, Precision, transformer_block

FLOAT32 = Precision()


def token_positions(tokens: Int[Array, "*B T"], pad: int = 1) -> Int[Array, "*B T"]:
    """Count the tokens that are not padding: 0, 1, … wherever the padding is, which itself is at −1.

    A table of positions with an `offset` of at least 1 has a row for padding, that before position 0.

    >>> token_positions(jnp.array([[1, 1, 7, 8], [7, 8, 9, 1]])).tolist()
    [[-1, -1, 0, 1], [0, 1, 2, -1]]
    """
    real = (tokens != pad).astype(jnp.int32)
    return jnp.cumsum(real, axis=-1) * real - 1


def _roberta(vocab: int, *, embed: int, heads: int, depth: int, dropout: float, precision: Precision) -> MaskedLMConfig:
    encoder = EncoderConfig(
        embedding=EmbeddingConfig(
            vocab=vocab, embed=embed, position="learned", max_length=512, offset=2, types=1, norm=1e-5, scaled=False,
            dropout=dropout, init_std=0.02, precision=precision,
        ),
        block=transformer_block(
            embed=embed, heads=heads, inner=4 * embed, activation="gelu", dropout=dropout, attention_dropout=dropout,
            init_std=0.02, precision=precision,
        ),
        depth=depth,
    )  # fmt: skip
    return MaskedLMConfig(encoder=encoder, activation="gelu")


def roberta_base(vocab: int = 50_265, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> MaskedLMConfig:
    """Return RoBERTa base: 12 layers, D=768, 125 M parameters with a pooler; its padding token is 1."""
    return _roberta(vocab, embed=768, heads=12, depth=12, dropout=dropout, precision=precision)


def roberta_large(vocab: int = 50_265, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> MaskedLMConfig:
    """Return RoBERTa large: 24 layers, D=1024, 355 M parameters with a pooler; its padding token is 1."""
    return _roberta(vocab, embed=1024, heads=16, depth=24, dropout=dropout, precision=precision)
