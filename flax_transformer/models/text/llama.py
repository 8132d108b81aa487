"""Llama (Touvron et al. 2023, https://arxiv.org/abs/2302.13971) and its kin, Mistral and Qwen: pre-norm decoders
with rotary positions, RMSNorm, grouped-query attention and a gated feed-forward layer.
"""

from dataclasses import replace
from typing import Any

from flax_transformer.models.causal import CausalConfig
from flax_transformer.nn import EmbeddingConfig, Precision, Rotary, transformer_block
from flax_transformer.ops import Llama3Scaling

FLOAT32 = Precision()


def _llama(
    vocab: int, *, length: int, depth: int, precision: Precision, tied: bool = False, window: int | None = None,
    qkv_bias: bool = False, **block: Any,
) -> CausalConfig:  # fmt: skip
    """Return what all have in common; the sizes of a block are the caller's."""
    made = transformer_block(
        norm="rms", norm_position="pre", activation="silu", gated=True, bias=False, init_std=0.02, precision=precision,
        **{"norm_eps": 1e-5, **block},
    )  # fmt: skip
    return CausalConfig(
        embedding=EmbeddingConfig(
            vocab=vocab, embed=block["embed"], position="none", max_length=length, scaled=False, init_std=0.02,
            precision=precision,
        ),
        block=replace(made, attention=replace(made.attention, bias=qkv_bias, out_bias=False)),
        depth=depth,
        tied_output=tied,
        window=window,
    )  # fmt: skip


def llama_tiny(vocab: int = 65, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return a size for a CPU: 2 layers, D=128, 2 heads, 2,048 positions; its angles have room for many more."""
    return _llama(
        vocab, length=2048, depth=2, precision=precision, tied=True, embed=128, inner=384, heads=2,
        rotary=Rotary(base=500_000.0),
    )  # fmt: skip


def llama2_7b(vocab: int = 32_000, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return Llama 2 7B (Touvron et al. 2023, https://arxiv.org/abs/2307.09288): 32 layers, D=4096."""
    return _llama(
        vocab, length=4096, depth=32, precision=precision, embed=4096, inner=11_008, heads=32, kv_heads=32,
        head_width=128, rotary=Rotary(),
    )  # fmt: skip


def llama3_8b(vocab: int = 128_256, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return Llama 3 8B (Grattafiori et al. 2024, https://arxiv.org/abs/2407.21783): 32 layers, D=4096, 8 kv heads."""
    return _llama(
        vocab, length=8192, depth=32, precision=precision, embed=4096, inner=14_336, heads=32, kv_heads=8,
        head_width=128, rotary=Rotary(base=500_000.0),
    )  # fmt: skip


def llama3_2_1b(vocab: int = 128_256, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return Llama 3.2 1B: 16 layers, D=2048, 8 kv heads, tied output, rotary positions stretched 32 times."""
    return _llama(
        vocab, length=131_072, depth=16, precision=precision, tied=True, embed=2048, inner=8192, heads=32, kv_heads=8,
        head_width=64, rotary=Rotary(base=500_000.0, frequencies=Llama3Scaling(factor=32.0)),
    )  # fmt: skip


def mistral_7b(vocab: int = 32_000, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return Mistral 7B v0.1 (Jiang et al. 2023, https://arxiv.org/abs/2310.06825): D=4096, a window of 4,096."""
    return _llama(
        vocab, length=32_768, depth=32, precision=precision, window=4096, embed=4096, inner=14_336, heads=32,
        kv_heads=8, head_width=128, rotary=Rotary(),
    )  # fmt: skip


def qwen2_5_0_5b(vocab: int = 151_936, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return Qwen2.5 0.5B (https://arxiv.org/abs/2412.15115): 24 layers, D=896, 2 kv heads, biases on q, k and v."""
    return _llama(
        vocab, length=32_768, depth=24, precision=precision, tied=True, embed=896, inner=4864, heads=14, kv_heads=2,
        head_width=64, norm_eps=1e-6, qkv_bias=True, rotary=Rotary(base=1_000_000.0),
    )  # fmt: skip


def qwen3_0_6b(vocab: int = 151_936, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return Qwen3 0.6B (https://arxiv.org/abs/2505.09388): 28 layers, D=1024, heads of 128, normalised q and k."""
    return _llama(
        vocab, length=40_960, depth=28, precision=precision, tied=True, embed=1024, inner=3072, heads=16, kv_heads=8,
        head_width=128, norm_eps=1e-6, qk_norm=1e-6, rotary=Rotary(base=1_000_000.0),
    )  # fmt: skip
