"""SegFormer: ever coarser grids of patches that overlap, and a head of linear layers alone (Xie et al. 2021,
https://arxiv.org/abs/2105.15203).

The encoder is the Mix Transformer: attention has fewer keys than queries, as in the Pyramid Vision Transformer, and
positions are known by a convolution in every feed-forward layer.

Axes: B batch, H W height and width in pixels, C channels, I J those of a grid, T positions on it, D width.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import ReadsImages
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.patch_attention import PatchAttention, Tiles, by_stack
from flax_transformer.models.vision.backbone import BackboneConfig
from flax_transformer.models.vision.mix_feedforward import MixFeedForwardConfig
from flax_transformer.models.vision.segmenter import SegmenterConfig
from flax_transformer.models.vision.spatial_reduction import SpatialReductionConfig
from flax_transformer.models.vision.uper_head import MLPHeadConfig
from flax_transformer.nn import (
    ConvConfig,
    Grid,
    GridAttentionConfig,
    GridBlockConfig,
    PatchConfig,
    Precision,
    TransformerBlockConfig,
    Trunk,
    TrunkConfig,
    make_norm,
    transformer_block,
    with_fields,
)
from flax_transformer.nn.check import check_images
from flax_transformer.nn.config import check_at_least, check_fields, check_rates, check_stages
from flax_transformer.nn.module import Module
from flax_transformer.nn.trunk import stage_drop_rates
from flax_transformer.ops import Mask
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Order, Part
from flax_transformer.parallel import constrain

FLOAT32 = Precision()
NORM_EPS = 1e-5


@frozen
class SegFormerConfig:
    """Stages, each of which makes patches of what the one before gives; every tuple has an entry for each."""

    first: TransformerBlockConfig
    """The blocks of the first stage, with a plain feed-forward layer; those of others are like them in all that is not
    said below, and the feed-forward layers of all have a convolution of 3×3 inside."""
    widths: tuple[int, ...]
    """D."""
    depths: tuple[int, ...]
    """Blocks."""
    stage_heads: tuple[int, ...]
    """Attention heads."""
    inners: tuple[int, ...]
    """F, the inner width of feed-forward layers."""
    windows: tuple[int, ...] = (7, 3, 3, 3)
    """Rows and columns of what goes before, or pixels, that a patch sees."""
    strides: tuple[int, ...] = (4, 2, 2, 2)
    """Rows and columns from patch to patch."""
    reductions: tuple[int, ...] = (8, 4, 2, 1)
    """Rows and columns of patches in a key and value."""
    channels: int = 3
    """C."""
    drop_path: float = 0.0
    """How often a row does without a sublayer of the last block, while training; it grows linearly from 0 in the first
    block of the first stage (Huang et al. 2016)."""
    unroll: int | bool = 1
    """Blocks per loop iteration; True for no loop."""
    remat: Literal["none", "full", "attention", "dots", "offload"] = "none"
    """What a block keeps for its backward pass: see `nn.REMAT`."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "channels")
        check_rates(self, "drop_path")
        names = "widths", "depths", "stage_heads", "inners", "windows", "strides", "reductions"
        check_stages(self, *names)
        if low := [name for name in names if min(getattr(self, name)) < 1]:
            raise ValueError(f"{low[0]} must be at least 1, got {getattr(self, low[0])}")
        own = self.first.embed, self.first.attention.heads, self.first.feedforward.inner
        said = self.widths[0], self.stage_heads[0], self.inners[0]
        if own != said:
            raise ValueError(f"the first stage must be as its blocks are, {own}, got {said}")

    @property
    def embed(self) -> int:
        """D of the last stage, the width of hidden states."""
        return self.widths[-1]

    @property
    def init_std(self) -> float | None:
        """Standard deviation that kernels start with."""
        return self.first.feedforward.init_std

    @property
    def precision(self) -> Precision:
        """Types of parameters and of what is computed."""
        return self.first.feedforward.precision

    @property
    def stage_widths(self) -> tuple[int, ...]:
        """Widths of `stage_states`."""
        return self.widths[0], *self.widths

    @property
    def stage_patches(self) -> tuple[ConvConfig, ...]:
        """The convolution that makes the patches of every stage."""
        return tuple(
            ConvConfig(
                channels=channels, features=width, window=(window, window), stride=stride, padding=window // 2,
                init_std=self.init_std, precision=self.precision,
            )
            for channels, width, window, stride in zip(
                (self.channels, *self.widths), self.widths, self.windows, self.strides, strict=False
            )
        )  # fmt: skip

    @property
    def stages(self) -> tuple[TrunkConfig, ...]:
        """Every stage's stack of blocks, which ends in a norm."""
        return tuple(
            TrunkConfig(block=self._block(i), depth=depth, unroll=self.unroll, remat=self.remat)
            for i, depth in enumerate(self.depths)
        )

    def _block(self, i: int) -> GridBlockConfig:
        like = with_fields(self.first, embed=self.widths[i], heads=self.stage_heads[i], inner=self.inners[i])
        attention, ratio = GridAttentionConfig(attention=like.attention), self.reductions[i]
        if ratio > 1:
            keys = PatchConfig(
                embed=self.widths[i], image=(ratio, ratio), patch=(ratio, ratio), channels=self.widths[i],
                init_std=self.init_std, precision=self.precision,
            )  # fmt: skip
            attention = SpatialReductionConfig(attention=like.attention, patches=keys, norm_eps=NORM_EPS)
        feedforward = MixFeedForwardConfig.like(like.feedforward)
        return GridBlockConfig(attention=attention, feedforward=feedforward, residual=like.residual)

    def build(self, rngs: nnx.Rngs) -> "SegFormer":
        """Make the encoder."""
        return SegFormer(self, rngs=rngs)


class OverlappingPatches(Module):
    """Patches of an image, or of what a stage gives, that share rows and columns, with a norm."""

    def __init__(self, cfg: ConvConfig, *, rngs: nnx.Rngs):
        self.patches = cfg.build(rngs)
        self.norm = make_norm("layer", cfg.features, eps=NORM_EPS, precision=cfg.precision, rngs=rngs)

    def __call__(self, images: Float[Array, "*B H W C"]) -> Float[Array, "*B I J D"]:
        """Embed images of any size."""
        x = self.norm(self.patches(images)).astype(self.patches.cfg.precision.residual)
        return constrain(x, "batch", None, None, None)


class SegFormer(ReadsImages, Module):
    """Hidden states of images: the patches of the last stage, line by line.

    `ops.capture(f, "stage_maps")` gives what each stage gives, [*B, I, J, D].
    """

    @property
    def layer_order(self) -> Order:
        """Its stages, on top of each other."""
        return tuple(part for i in range(len(self.cfg.depths)) for part in (f"embeddings.{i}", Part(f"stages.{i}")))

    def __init__(self, cfg: SegFormerConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.embeddings = nnx.List([OverlappingPatches(patches, rngs=rngs) for patches in cfg.stage_patches])
        self.stages = nnx.List([Trunk(stage, rngs=rngs) for stage in cfg.stages])

    def stage_states(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> list[Float[Array, "*B I J D"]]:
        """Return the patches that the first stage is given, and what every stage gives, of images of any size.

        Args:
          key: for dropout and stochastic depth; None means none.

        Raises:
          ValueError: shapes that do not fit.
        """
        cfg, found = self.cfg, []
        check_images(images, cfg.channels)
        keys, rates = split_keys(key, len(cfg.depths)), stage_drop_rates(cfg.drop_path, cfg.depths, key)
        for i, (embedding, stage) in enumerate(zip(self.embeddings, self.stages, strict=True)):
            x = embedding(found[-1] if i else images)
            found = found or [x]
            y = stage(x.reshape(*x.shape[:-3], -1, x.shape[-1]), key=keys[i], grid=Grid(*x.shape[-3:-1]), **rates[i])
            found.append(checkpoint_name(y.reshape(x.shape), "stage_maps"))
        return found

    def feature_map(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B I J D"]:
        """Compute the last feature map; arguments and errors as of `stage_states`."""
        return self.stage_states(images, key=key)[-1]

    def __call__(
        self, images: Float[Array, "*B H W C"], *, mask: Mask | None = None, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B T D"]:
        """Encode images of any size.

        Args:
          mask: None; everything is seen.
          key: for dropout and stochastic depth; None means none.

        Raises:
          ValueError: shapes that do not fit, or a mask.
        """
        if mask is not None:
            raise ValueError(f"all that is in an image is seen, got a mask {mask}")
        x = self.feature_map(images, key=key)
        return x.reshape(*x.shape[:-3], -1, x.shape[-1])

    def memory_mask(self, mask: Mask | None) -> Mask | None:
        """Return which positions of the output are padding: images have none."""
        return None

    def hidden_states(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B T D"]:
        """Compute the last hidden states from the inputs of a batch; arguments as in a call."""
        return self(images, key=key)

    def over_patches(self, found: Sequence[np.ndarray], height: int, width: int) -> list[PatchAttention]:
        """Lay out what `ops.capture(f, "attention_weights")` gives of one image [height, width] over its patches.

        A patch is drawn where its middle is, as large as the step to the next.
        """
        cfg, laid = self.cfg, []
        patches = Tiles(Grid(height, width), (1, 1))
        for i, weights in enumerate(by_stack(found, cfg.depths)):
            window, stride, ratio = cfg.windows[i], cfg.strides[i], cfg.reductions[i]
            sides = ((side + 2 * (window // 2) - window) // stride + 1 for side in patches.grid)
            patches = patches.merged(stride, stride, Grid(*sides))
            laid.append(PatchAttention(f"stage {i + 1}", weights[:, 0], patches, patches.merged(ratio, ratio)))
        return laid


def _mit(widths: tuple[int, ...], depths: tuple[int, ...], precision: Precision) -> SegFormerConfig:
    first = transformer_block(
        embed=widths[0], heads=1, inner=4 * widths[0], norm_eps=NORM_EPS, norm_position="pre", activation="gelu",
        init_std=0.02, precision=precision,
    )  # fmt: skip
    return SegFormerConfig(
        first=first, widths=widths, depths=depths, stage_heads=(1, 2, 5, 8), inners=tuple(4 * each for each in widths),
        drop_path=0.1,
    )  # fmt: skip


WIDE = (64, 128, 320, 512)
SIZES = {
    "b0": ((32, 64, 160, 256), (2, 2, 2, 2)),
    "b1": (WIDE, (2, 2, 2, 2)),
    "b2": (WIDE, (3, 4, 6, 3)),
    "b3": (WIDE, (3, 4, 18, 3)),
    "b4": (WIDE, (3, 8, 27, 3)),
    "b5": (WIDE, (3, 6, 40, 3)),
}
"""Widths and depths of stages."""


def mit(size: str, classes: int = 1000, *, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return a Mix Transformer that classifies images, "b0" … "b5": of 8, 8, 16, 28, 42 and 52 layers.

    Raises:
      ValueError: another size.
    """
    return with_head(_mit(*_of(size), precision), outputs=classes, pool="mean")


def _of(size: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if size not in SIZES:
        raise ValueError(f"size must be one of {', '.join(SIZES)}, got {size!r}")
    return SIZES[size]


def mit_b0(classes: int = 1000, *, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return MiT-B0, which classifies images: 8 layers, D=32 … 256, 3.6 M parameters."""
    return mit("b0", classes, precision=precision)


def with_mlp_head(encoder: SegFormerConfig, classes: int, *, embed: int, dropout: float = 0.1) -> SegmenterConfig:
    """Put a head of linear layers on what all stages give.

    Args:
      classes: E.
      embed: width of the head.
      dropout: of its features, before classes are scored.
    """
    head = MLPHeadConfig(
        channels=encoder.widths, outputs=classes, embed=embed, init_std=encoder.init_std, precision=encoder.precision
    )
    backbone = BackboneConfig(backbone=encoder, stages=tuple(range(1, 1 + len(encoder.widths))))
    return SegmenterConfig(backbone=backbone, head=head, dropout=dropout)


def segformer(size: str, classes: int = 150, *, precision: Precision = FLOAT32) -> SegmenterConfig:
    """Return a SegFormer, "b0" … "b5", whose head is 256 wide in the two smallest and 768 in others.

    Raises:
      ValueError: another size.
    """
    return with_mlp_head(_mit(*_of(size), precision), classes, embed=256 if size in ("b0", "b1") else 768)


def segformer_b0(classes: int = 150, *, precision: Precision = FLOAT32) -> SegmenterConfig:
    """Return SegFormer-B0: 8 layers, D=32 … 256, 3.8 M parameters with ADE20K's 150 classes."""
    return segformer("b0", classes, precision=precision)


def segformer_b1(classes: int = 150, *, precision: Precision = FLOAT32) -> SegmenterConfig:
    """Return SegFormer-B1: 8 layers, D=64 … 512, 13.7 M parameters with ADE20K's 150 classes."""
    return segformer("b1", classes, precision=precision)


def segformer_b5(classes: int = 150, *, precision: Precision = FLOAT32) -> SegmenterConfig:
    """Return SegFormer-B5: 52 layers, D=64 … 512, 84.7 M parameters with ADE20K's 150 classes."""
    return segformer("b5", classes, precision=precision)
