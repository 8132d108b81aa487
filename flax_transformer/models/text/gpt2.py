"""GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"): a pre-norm decoder."""

import math

from flax_transformer.models.causal import CausalConfig
from flax_transformer.nn import EmbeddingConfig, Precision, transformer_block

FLOAT32 = Precision()


def _gpt2(
    vocab: int, *, embed: int, heads: int, depth: int, length: int = 1024, dropout: float, precision: Precision
) -> CausalConfig:
    return CausalConfig(
        embedding=EmbeddingConfig(
            vocab=vocab, embed=embed, position="learned", types="token", max_length=length, scaled=False,
            dropout=dropout, init_std=0.02, precision=precision,
        ),
        block=transformer_block(
            embed=embed, heads=heads, inner=4 * embed, norm_position="pre", activation="gelu_tanh", dropout=dropout,
            attention_dropout=dropout, init_std=0.02, residual_init_std=0.02 / math.sqrt(2 * depth),
            precision=precision,
        ),
        depth=depth,
    )  # fmt: skip


def gpt2(vocab: int = 50_257, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> CausalConfig:
    """Return the smallest GPT-2: 12 layers, D=768, 124 M parameters."""
    return _gpt2(vocab, embed=768, heads=12, depth=12, dropout=dropout, precision=precision)


def gpt2_medium(vocab: int = 50_257, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> CausalConfig:
    """Return GPT-2 medium: 24 layers, D=1024, 355 M parameters."""
    return _gpt2(vocab, embed=1024, heads=16, depth=24, dropout=dropout, precision=precision)


def gpt2_large(vocab: int = 50_257, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> CausalConfig:
    """Return GPT-2 large: 36 layers, D=1280, 774 M parameters."""
    return _gpt2(vocab, embed=1280, heads=20, depth=36, dropout=dropout, precision=precision)


def gpt2_xl(vocab: int = 50_257, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> CausalConfig:
    """Return GPT-2 XL: 48 layers, D=1600, 1.6 B parameters."""
    return _gpt2(vocab, embed=1600, heads=25, depth=48, dropout=dropout, precision=precision)


def gpt2_tiny(vocab: int = 65, *, dropout: float = 0.0, precision: Precision = FLOAT32) -> CausalConfig:
    """Return nanoGPT's size for a CPU: 4 layers, D=128, 4 heads, 64 positions."""
    return _gpt2(vocab, embed=128, heads=4, depth=4, length=64, dropout=dropout, precision=precision)


def gpt2_mini(vocab: int = 65, *, dropout: float = 0.2, precision: Precision = FLOAT32) -> CausalConfig:
    """Return nanoGPT's size for characters on a GPU: 6 layers, D=384, 6 heads, 256 positions, 10.8 M parameters."""
    return _gpt2(vocab, embed=384, heads=6, depth=6, length=256, dropout=dropout, precision=precision)
