"""Qwen2.5-VL: Qwen2-VL with an encoder of images that attends within windows (Bai et al. 2025,
https://arxiv.org/abs/2502.13923).
"""

from flax_transformer.models.multimodal.interleaved import InterleavedConfig
from flax_transformer.models.multimodal.qwen2_vl import FLOAT32, qwen2_vl_text
from flax_transformer.models.vision.packed_vit import PackedViTConfig, packed_vit
from flax_transformer.nn import Precision


def _vision(outputs: int, precision: Precision) -> PackedViTConfig:
    """Return the encoder: every eighth layer sees all of an image, the others windows of 4×4 squares."""
    return packed_vit(outputs, inner=3420, gated=True, windows=(*(4,) * 7, None), precision=precision)


def qwen2_5_vl_3b(vocab: int = 151_936, *, precision: Precision = FLOAT32) -> InterleavedConfig:
    """Return Qwen2.5-VL 3B: 36 layers, D=2048, 2 kv heads, tied output; 3,754.6 M parameters, 668.7 M the images'."""
    text = qwen2_vl_text(
        vocab, embed=2048, inner=11_008, heads=16, kv_heads=2, depth=36, tied=True, precision=precision
    )
    return InterleavedConfig(vision=_vision(2048, precision), text=text)


def qwen2_5_vl_7b(vocab: int = 152_064, *, precision: Precision = FLOAT32) -> InterleavedConfig:
    """Return Qwen2.5-VL 7B: 28 layers, D=3584, 4 kv heads; 8,292.2 M parameters, 676.6 M of them images'."""
    text = qwen2_vl_text(vocab, embed=3584, inner=18_944, heads=28, kv_heads=4, depth=28, precision=precision)
    return InterleavedConfig(vision=_vision(3584, precision), text=text)
