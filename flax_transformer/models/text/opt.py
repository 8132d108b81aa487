"""OPT (Zhang et al. 2022, https://arxiv.org/abs/2205.01068): a pre-norm decoder with learned positions and ReLU."""

from flax_transformer.models.causal import CausalConfig
from flax_transformer.nn import EmbeddingConfig, Precision, transformer_block

FLOAT32 = Precision()


def _opt(vocab: int, *, embed: int, heads: int, depth: int, dropout: float, precision: Precision) -> CausalConfig:
    return CausalConfig(
        embedding=EmbeddingConfig(
            vocab=vocab, embed=embed, position="learned", max_length=2048, offset=2, scaled=False, init_std=0.02,
            precision=precision,
        ),
        block=transformer_block(
            embed=embed, heads=heads, inner=4 * embed, norm_position="pre", activation="relu", dropout=dropout,
            out_bias=True, init_std=0.02, precision=precision,
        ),
        depth=depth,
    )  # fmt: skip


def opt_125m(vocab: int = 50_272, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> CausalConfig:
    """Return OPT 125M: 12 layers, D=768."""
    return _opt(vocab, embed=768, heads=12, depth=12, dropout=dropout, precision=precision)


def opt_1_3b(vocab: int = 50_272, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> CausalConfig:
    """Return OPT 1.3B: 24 layers, D=2048."""
    return _opt(vocab, embed=2048, heads=32, depth=24, dropout=dropout, precision=precision)


def opt_6_7b(vocab: int = 50_272, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> CausalConfig:
    """Return OPT 6.7B: 32 layers, D=4096."""
    return _opt(vocab, embed=4096, heads=32, depth=32, dropout=dropout, precision=precision)
