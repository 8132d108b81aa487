"""SigLIP 2 of images of any size and shape: SigLIP's two towers, of which that of images reads patches in rows
(Tschannen et al. 2025, https://arxiv.org/abs/2502.14786).

Checkpoints for images of one size are SigLIP's.
"""

from dataclasses import replace

from flax_transformer.models.head import ClassifierConfig
from flax_transformer.models.multimodal.siglip import FLOAT32, siglip_base_patch16, siglip_so400m_patch14
from flax_transformer.models.multimodal.towers import TwoTowersConfig
from flax_transformer.models.vision.naflex import NaFlexConfig
from flax_transformer.nn import Precision


def _naflex(like: TwoTowersConfig) -> TwoTowersConfig:
    """Put an encoder of patches of 16×16 pixels, with a table of 16×16 positions, in place of the ViT."""
    vit = like.vision.backbone
    patches = replace(vit.patches, image=(256, 256), patch=(16, 16))
    backbone = NaFlexConfig(block=vit.block, depth=vit.depth, patches=patches, table_std=vit.table_std)
    return replace(like, vision=ClassifierConfig(backbone=backbone, head=like.vision.head))


def siglip2_base_patch16_naflex(vocab: int = 256_000, *, precision: Precision = FLOAT32) -> TwoTowersConfig:
    """Return SigLIP 2 B/16 NaFlex: 375.2 M parameters."""
    return _naflex(siglip_base_patch16(vocab, precision=precision))


def siglip2_so400m_patch16_naflex(vocab: int = 256_000, *, precision: Precision = FLOAT32) -> TwoTowersConfig:
    """Return SigLIP 2 SO400M/16 NaFlex: 1,135.7 M parameters."""
    return _naflex(siglip_so400m_patch14(vocab, precision=precision))
