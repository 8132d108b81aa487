"""SigLIP: two towers that learn by a sigmoid of every pair whether a text and an image belong together (Zhai et al.
2023, https://arxiv.org/abs/2303.15343).
"""

from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.multimodal.towers import TwoTowersConfig
from flax_transformer.models.pool import AttentionPoolConfig
from flax_transformer.models.vision.vit import ViTConfig
from flax_transformer.nn import EmbeddingConfig, PatchConfig, Precision, TransformerBlockConfig, transformer_block

FLOAT32 = Precision()
EPS = 1e-6


def _block(embed: int, heads: int, inner: int, precision: Precision) -> TransformerBlockConfig:
    return transformer_block(
        embed=embed, heads=heads, inner=inner, norm_eps=EPS, norm_position="pre", activation="gelu_tanh",
        precision=precision,
    )  # fmt: skip


def _siglip(
    embed: int, heads: int, inner: int, depth: int, *, image: int, patch: int, vocab: int, precision: Precision
) -> TwoTowersConfig:
    block = _block(embed, heads, inner, precision)
    text = EncoderConfig(
        embedding=EmbeddingConfig(
            vocab=vocab, embed=embed, position="learned", max_length=64, scaled=False, precision=precision
        ),
        block=block,
        depth=depth,
    )
    vision = ViTConfig(
        patches=PatchConfig(embed=embed, image=(image, image), patch=(patch, patch), precision=precision),
        tokens=(),
        block=block,
        depth=depth,
        table_std=embed**-0.5,
    )
    return TwoTowersConfig(
        text=with_head(text, outputs=embed, pool="last"),
        vision=ClassifierConfig(backbone=vision, head=AttentionPoolConfig(block=block)),
        scale=10.0,
        bias=-10.0,
    )


def siglip_base_patch16(vocab: int = 32_000, *, image: int = 224, precision: Precision = FLOAT32) -> TwoTowersConfig:
    """Return SigLIP-B/16: 203.2 M parameters."""
    return _siglip(768, 12, 3072, 12, image=image, patch=16, vocab=vocab, precision=precision)


def siglip_so400m_patch14(vocab: int = 32_000, *, image: int = 384, precision: Precision = FLOAT32) -> TwoTowersConfig:
    """Return SigLIP-SO400M/14: 878 M parameters."""
    return _siglip(1152, 16, 4304, 27, image=image, patch=14, vocab=vocab, precision=precision)
