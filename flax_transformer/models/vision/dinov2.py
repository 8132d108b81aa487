"""DINOv2: a ViT with LayerScale that learns without labels (Oquab et al. 2023, https://arxiv.org/abs/2304.07193).

Its classifier reads the class token and the mean of the patches, side by side.
"""

from dataclasses import replace

from flax_transformer.models.vision.vit import FLOAT32, ViTConfig, vit_encoder
from flax_transformer.nn import Precision, with_fields

GIANT = (1536, 24, 40, 4096)
"""Width, heads, depth and inner width of the gated feed-forward layers of the largest."""


def _dinov2(size: str, image: int, precision: Precision) -> ViTConfig:
    config = vit_encoder(size, 14, image=image, mask_token=True, precision=precision)
    return with_fields(config, norm_eps=1e-6, layer_scale=1.0)


def dinov2_small(*, image: int = 518, precision: Precision = FLOAT32) -> ViTConfig:
    """Return DINOv2 ViT-S/14: 12 layers, D=384, 22.1 M parameters."""
    return _dinov2("small", image, precision)


def dinov2_base(*, image: int = 518, precision: Precision = FLOAT32) -> ViTConfig:
    """Return DINOv2 ViT-B/14: 12 layers, D=768, 86.6 M parameters."""
    return _dinov2("base", image, precision)


def dinov2_large(*, image: int = 518, precision: Precision = FLOAT32) -> ViTConfig:
    """Return DINOv2 ViT-L/14: 24 layers, D=1024, 304.4 M parameters."""
    return _dinov2("large", image, precision)


def dinov2_giant(*, image: int = 518, precision: Precision = FLOAT32) -> ViTConfig:
    """Return DINOv2 ViT-g/14: 40 layers, D=1536, gated feed-forward layers, 1,136.5 M parameters."""
    config = _dinov2("small", image, precision)
    embed, heads, depth, inner = GIANT
    config = with_fields(replace(config, depth=depth), heads=heads, inner=inner, gated=True, activation="silu")
    return with_fields(config, embed=embed)
