"""The compact convolutional Transformer: a ViT with convolutions before it, and a mean weighted by what it says of each
place after it, which learns from few images (Hassani et al. 2021, https://arxiv.org/abs/2104.05704).
"""

from dataclasses import replace

from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.vision.vit import ViTConfig
from flax_transformer.nn import Precision, StemConfig, transformer_block

FLOAT32 = Precision()


def cct(
    *, embed: int, heads: int, depth: int, inner: int, image: int, stem: tuple[int, ...] = (), pool: bool = True,
    precision: Precision = FLOAT32,
) -> ViTConfig:  # fmt: skip
    """Make the encoder's config of its sizes.

    Args:
      stem: widths of the convolutions before the last, which is `embed` wide.
      pool: whether they halve an image by the largest value of 3×3, or by their stride.

    >>> cct(embed=128, heads=2, depth=2, inner=128, image=32, stem=(64,)).patches.grid
    (8, 8)
    """
    block = transformer_block(
        embed=embed, heads=heads, inner=inner, norm_eps=1e-5, norm_position="pre", activation="gelu",
        precision=precision,
    )  # fmt: skip
    return ViTConfig(
        patches=StemConfig(embed=embed, image=(image, image), inner=stem, pool=pool, precision=precision),
        tokens=(),
        block=replace(block, attention=replace(block.attention, bias=False, out_bias=True)),
        depth=depth,
        drop_path=0.1,
        table_std=0.2,
    )


def _cct(
    embed: int, heads: int, depth: int, ratio: int, stem: tuple[int, ...], classes: int, image: int,
    precision: Precision,
) -> ClassifierConfig:  # fmt: skip
    encoder = cct(
        embed=embed, heads=heads, depth=depth, inner=ratio * embed, image=image, stem=stem, precision=precision
    )
    return with_head(encoder, outputs=classes, pool="weighted")


def cct_2_3x2(classes: int = 10, *, image: int = 32, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return CCT-2/3×2: 2 layers, D=128, two convolutions, 0.28 M parameters."""
    return _cct(128, 2, 2, 1, (64,), classes, image, precision)


def cct_4_3x2(classes: int = 10, *, image: int = 32, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return CCT-4/3×2: 4 layers, D=128, two convolutions, 0.48 M parameters."""
    return _cct(128, 2, 4, 1, (64,), classes, image, precision)


def cct_6_3x1(classes: int = 10, *, image: int = 32, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return CCT-6/3×1: 6 layers, D=256, one convolution, 3.2 M parameters."""
    return _cct(256, 4, 6, 2, (), classes, image, precision)


def cct_7_3x1(classes: int = 10, *, image: int = 32, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return CCT-7/3×1: 7 layers, D=256, one convolution, 3.8 M parameters."""
    return _cct(256, 4, 7, 2, (), classes, image, precision)
