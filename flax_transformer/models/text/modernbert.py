"""ModernBERT (Warner et al. 2024, https://arxiv.org/abs/2412.13663): a pre-norm encoder of long texts.

Every third layer sees all tokens, those between see 64 to either side; rotary positions have a base for each kind of
layer, feed-forward layers are gated, nothing but the output layer has a bias, and the first layer's attention has no
norm, as the embeddings have just had one. A preset is the model that is pre-trained on masked tokens.
"""

import math
from dataclasses import replace

from flax_transformer.models.encoder import MaskedLMConfig, WindowedEncoderConfig
from flax_transformer.nn import (
    EmbeddingConfig,
    LaterNormConfig,
    NormConfig,
    Precision,
    ResidualConfig,
    Rotary,
    transformer_block,
)
from flax_transformer.nn.config import shared_fields

FLOAT32 = Precision()
NORM, EPS = "layer_without_bias", 1e-5


def _modernbert(vocab: int, precision: Precision, *, depth: int, **sizes: int) -> MaskedLMConfig:
    plain = transformer_block(
        **sizes, norm=NORM, norm_eps=EPS, norm_position="pre", activation="gelu", gated=True, bias=False,
        rotary=Rotary(base=160_000.0, window=Rotary(base=10_000.0)), init_std=0.02,
        residual_init_std=0.02 / math.sqrt(2 * depth), precision=precision,
    )  # fmt: skip
    residual = LaterNormConfig(**shared_fields(ResidualConfig, plain.residual))
    encoder = WindowedEncoderConfig(
        embedding=EmbeddingConfig(
            vocab=vocab, embed=plain.embed, position="none", max_length=8192, norm=NormConfig(kind=NORM, eps=EPS),
            scaled=False, init_std=0.02, precision=precision,
        ),
        block=replace(plain, residual=residual, feedforward_residual=plain.residual),
        depth=depth,
        windows=(None, 64, 64),
    )  # fmt: skip
    return MaskedLMConfig(encoder=encoder, dense_bias=False)


def modernbert_base(vocab: int = 50_368, *, precision: Precision = FLOAT32) -> MaskedLMConfig:
    """Return ModernBERT base: 22 layers, D=768, 149 M parameters."""
    return _modernbert(vocab, precision, depth=22, embed=768, heads=12, inner=1152)


def modernbert_large(vocab: int = 50_368, *, precision: Precision = FLOAT32) -> MaskedLMConfig:
    """Return ModernBERT large: 28 layers, D=1024, 395 M parameters."""
    return _modernbert(vocab, precision, depth=28, embed=1024, heads=16, inner=2624)
