"""Falcon (Almazrouei et al. 2023, https://arxiv.org/abs/2311.16867): decoders with attention and feed-forward layer
side by side, behind one norm or one each, and few heads of keys and values.
"""

from dataclasses import replace

from flax_transformer.models.causal import CausalConfig
from flax_transformer.nn import EmbeddingConfig, Precision, Rotary, transformer_block

FLOAT32 = Precision()


def _falcon(
    vocab: int, *, embed: int, heads: int, kv_heads: int, depth: int, norms: int, precision: Precision
) -> CausalConfig:
    """Return a Falcon with one norm before both sublayers, or with two."""
    made = transformer_block(
        embed=embed, heads=heads, kv_heads=kv_heads, inner=4 * embed, norm_position="pre", norm_eps=1e-5,
        activation="gelu", bias=False, out_bias=False, rotary=Rotary(), init_std=0.02, precision=precision,
    )  # fmt: skip
    one = replace(made.residual, norm_position="none") if norms == 1 else None
    return CausalConfig(
        embedding=EmbeddingConfig(
            vocab=vocab, embed=embed, position="none", max_length=2048, scaled=False, init_std=0.02,
            precision=precision,
        ),
        block=replace(made, parallel=True, feedforward_residual=one),
        depth=depth,
    )  # fmt: skip


def falcon_7b(vocab: int = 65_024, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return Falcon 7B: 32 layers, D=4544, 71 heads of queries and one of keys, 6.92 B parameters."""
    return _falcon(vocab, embed=4544, heads=71, kv_heads=1, depth=32, norms=1, precision=precision)


def falcon_40b(vocab: int = 65_024, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return Falcon 40B: 60 layers, D=8192, 128 heads of queries in 8 groups, two norms, 41.3 B parameters."""
    return _falcon(vocab, embed=8192, heads=128, kv_heads=8, depth=60, norms=2, precision=precision)
