"""CLIP: a decoder of texts and a ViT that learn which caption belongs to which image (Radford et al. 2021,
https://arxiv.org/abs/2103.00020).
"""

import math
from typing import Any

from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.multimodal.towers import TwoTowersConfig
from flax_transformer.models.vision.vit import ViTConfig
from flax_transformer.nn import EmbeddingConfig, PatchConfig, Precision, TransformerBlockConfig, transformer_block

FLOAT32 = Precision()
EPS = 1e-5


def _block(embed: int, heads: int, depth: int, precision: Precision, dropout: float = 0.0) -> TransformerBlockConfig:
    return transformer_block(
        embed=embed, heads=heads, inner=4 * embed, norm_eps=EPS, norm_position="pre", activation="quick_gelu",
        dropout=dropout, init_std=0.02, residual_init_std=0.02 / math.sqrt(2 * depth), precision=precision,
    )  # fmt: skip


def clip_text(
    width: int,
    *,
    vocab: int = 49_408,
    embed: int = 512,
    heads: int = 8,
    depth: int = 12,
    length: int = 77,
    **options: Any,
) -> ClassifierConfig:
    """Return the tower of texts: a decoder, whose state at the end of the text is projected.

    Args:
      width: E, of the common space; 0: not projected.
      options: `precision` and `dropout`.
    """
    precision = options.get("precision", FLOAT32)
    backbone = CausalConfig(
        embedding=EmbeddingConfig(
            vocab=vocab, embed=embed, position="learned", max_length=length, scaled=False, init_std=0.02,
            precision=precision,
        ),
        block=_block(embed, heads, depth, **{"precision": precision, **options}),
        depth=depth,
    )  # fmt: skip
    return with_head(backbone, outputs=width, pool="last", bias=False)


def clip_vision(
    width: int, *, image: int, patch: int, embed: int = 768, heads: int = 12, depth: int = 12, **options: Any
) -> ClassifierConfig:
    """Return the tower of images: a ViT with a norm before its blocks, whose class token is projected.

    Args:
      width: as `clip_text`'s.
      options: `precision` and `dropout`.
    """
    precision = options.get("precision", FLOAT32)
    backbone = ViTConfig(
        patches=PatchConfig(
            embed=embed, image=(image, image), patch=(patch, patch), bias=False, init_std=0.02, precision=precision
        ),
        block=_block(embed, heads, depth, **{"precision": precision, **options}),
        depth=depth,
        norm="start",
    )
    return with_head(backbone, outputs=width, pool="first", norm=EPS, bias=False)


def _clip(image: int, patch: int, vocab: int, precision: Precision, *, large: bool = False) -> TwoTowersConfig:
    text = {"embed": 768, "heads": 12} if large else {}
    tower = {"embed": 1024, "heads": 16, "depth": 24} if large else {}
    width = 768 if large else 512
    return TwoTowersConfig(
        text=clip_text(width, vocab=vocab, precision=precision, **text),
        vision=clip_vision(width, image=image, patch=patch, precision=precision, **tower),
    )


def clip_vit_base_patch32(vocab: int = 49_408, *, precision: Precision = FLOAT32) -> TwoTowersConfig:
    """Return CLIP ViT-B/32: 151.3 M parameters."""
    return _clip(224, 32, vocab, precision)


def clip_vit_base_patch16(vocab: int = 49_408, *, precision: Precision = FLOAT32) -> TwoTowersConfig:
    """Return CLIP ViT-B/16: 149.6 M parameters."""
    return _clip(224, 16, vocab, precision)


def clip_vit_large_patch14(vocab: int = 49_408, *, precision: Precision = FLOAT32) -> TwoTowersConfig:
    """Return CLIP ViT-L/14: 427.6 M parameters."""
    return _clip(224, 14, vocab, precision, large=True)


def clip_vit_large_patch14_336(vocab: int = 49_408, *, precision: Precision = FLOAT32) -> TwoTowersConfig:
    """Return CLIP ViT-L/14 for images of 336 × 336: 427.9 M parameters."""
    return _clip(336, 14, vocab, precision, large=True)
