"""Gemma 2 (Gemma Team 2024, https://arxiv.org/abs/2408.00118) and the text models of Gemma 3 (Gemma Team 2025,
https://arxiv.org/abs/2503.19786): decoders with a norm before and after each sublayer, whose layers take turns at
local and at global attention.
"""

from dataclasses import replace

from flax_transformer.models.causal import CausalConfig
from flax_transformer.nn import EmbeddingConfig, Precision, Rotary, ZeroCenteredAttentionConfig, transformer_block
from flax_transformer.ops import CappedAttention, LinearScaling

FLOAT32 = Precision()


def _gemma(
    vocab: int, precision: Precision, *, depth: int, head_width: int = 256, length: int = 8192, **sizes: int
) -> CausalConfig:
    """Return what all have in common; scores are divided by the root of the width of heads.

    Args:
      sizes: `embed`, `inner`, `heads` and `kv_heads` of a block.
    """
    made = transformer_block(
        **sizes, head_width=head_width, scale=head_width**-0.5,
        norm="zero_centered_rms", norm_eps=1e-6, norm_position="both", activation="gelu_tanh", gated=True, bias=False,
        out_bias=False, rotary=Rotary(), init_std=0.02, precision=precision,
    )  # fmt: skip
    return CausalConfig(
        embedding=EmbeddingConfig(
            vocab=vocab, embed=made.embed, position="none", max_length=length, scaled=True, init_std=0.02,
            precision=precision,
        ),
        block=replace(made, attention=ZeroCenteredAttentionConfig.like(made.attention)),
        depth=depth,
    )  # fmt: skip


def _gemma2(config: CausalConfig, *, scalar: int = 256) -> CausalConfig:
    """Return a Gemma 2: caps on scores and logits, windows of 4,096 in turns.

    Args:
      scalar: by the root of which scores are divided.
    """
    mixing = replace(config.block.attention, attend=CappedAttention(cap=50.0), scale=scalar**-0.5)
    block = replace(config.block, attention=mixing)
    return replace(config, block=block, window=(4096, None), logit_cap=30.0)


def gemma2_2b(vocab: int = 256_000, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return Gemma 2 2B: 26 layers, D=2304, 2.6 B parameters."""
    return _gemma2(_gemma(vocab, precision, embed=2304, inner=9216, heads=8, kv_heads=4, depth=26))


def gemma2_9b(vocab: int = 256_000, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return Gemma 2 9B: 42 layers, D=3584, 9.2 B parameters."""
    return _gemma2(_gemma(vocab, precision, embed=3584, inner=14_336, heads=16, kv_heads=8, depth=42))


def gemma2_27b(vocab: int = 256_000, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return Gemma 2 27B: 46 layers, D=4608, heads of 128, 27.2 B parameters."""
    sizes = {"embed": 4608, "inner": 36_864, "heads": 32, "kv_heads": 16, "head_width": 128, "depth": 46}
    return _gemma2(_gemma(vocab, precision, **sizes), scalar=144)


def _gemma3(config: CausalConfig, *, window: int, factor: float | None = None) -> CausalConfig:
    """Return the text model of a Gemma 3: normalised queries and keys, five windows and then none, two bases.

    Args:
      factor: by which rotary positions of global attention are slowed; None: they are not.
    """
    scaling = {} if factor is None else {"frequencies": LinearScaling(factor=factor)}
    rotary = Rotary(base=1_000_000.0, window=Rotary(), **scaling)
    mixing = replace(config.block.attention, qk_norm=1e-6, rotary=rotary)
    return replace(config, block=replace(config.block, attention=mixing), window=(window,) * 5 + (None,))


def gemma3_270m(vocab: int = 262_144, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return Gemma 3 270M: 18 layers, D=640, windows of 512."""
    sizes = {"embed": 640, "inner": 2048, "heads": 4, "kv_heads": 1, "depth": 18, "length": 32_768}
    return _gemma3(_gemma(vocab, precision, **sizes), window=512)


def gemma3_1b(vocab: int = 262_144, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return Gemma 3 1B: 26 layers, D=1152, windows of 512."""
    sizes = {"embed": 1152, "inner": 6912, "heads": 4, "kv_heads": 1, "depth": 26, "length": 32_768}
    return _gemma3(_gemma(vocab, precision, **sizes), window=512)


def gemma3_4b(vocab: int = 262_208, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return the text model of Gemma 3 4B: 34 layers, D=2560, windows of 1,024."""
    sizes = {"embed": 2560, "inner": 10_240, "heads": 8, "kv_heads": 4, "depth": 34, "length": 131_072}
    return _gemma3(_gemma(vocab, precision, **sizes), window=1024, factor=8.0)


def gemma3_12b(vocab: int = 262_208, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return the text model of Gemma 3 12B: 48 layers, D=3840, windows of 1,024, 11.8 B parameters."""
    sizes = {"embed": 3840, "inner": 15_360, "heads": 16, "kv_heads": 8, "depth": 48, "length": 131_072}
    return _gemma3(_gemma(vocab, precision, **sizes), window=1024, factor=8.0)


def gemma3_27b(vocab: int = 262_208, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return the text model of Gemma 3 27B: 62 layers, D=5376, heads of 128, windows of 1,024, 27.0 B parameters."""
    sizes = {"embed": 5376, "inner": 21_504, "heads": 32, "kv_heads": 16, "head_width": 128, "depth": 62}
    made = _gemma3(_gemma(vocab, precision, length=131_072, **sizes), window=1024, factor=8.0)
    mixing = replace(made.block.attention, scale=168**-0.5)
    return replace(made, block=replace(made.block, attention=mixing))
