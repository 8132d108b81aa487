"""The Pyramid Vision Transformer: ever coarser grids, with keys coarser still (Wang et al. 2021,
https://arxiv.org/abs/2102.12122).

Axes: B batch, H W height and width in pixels, C channels, T positions on a grid, D width.
"""

from collections.abc import Sequence
from typing import Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import ReadsImages
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.patch_attention import PatchAttention, Tiles, by_stack
from flax_transformer.models.vision.spatial_reduction import SpatialReductionConfig
from flax_transformer.nn import (
    Grid,
    GridAttentionConfig,
    GridBlockConfig,
    PatchConfig,
    Precision,
    StageConfig,
    TransformerBlockConfig,
    Trunk,
    make_norm,
    transformer_block,
    with_fields,
)
from flax_transformer.nn.config import check_fields, check_rates, check_stages
from flax_transformer.nn.module import Module
from flax_transformer.nn.table import make_table
from flax_transformer.nn.trunk import stage_drop_rates
from flax_transformer.ops import Mask, dropout, widen
from flax_transformer.ops.resample import bilinear, resample_positions
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Order, Part
from flax_transformer.parallel import constrain

FLOAT32 = Precision()


@frozen
class PVTConfig:
    """Stages, each of which makes patches of what the one before gives; every tuple has an entry for each."""

    patches: PatchConfig
    """Of the first stage."""
    first: TransformerBlockConfig
    """The blocks of the first stage; those of others are like them in all that is not said below."""
    widths: tuple[int, ...]
    """D."""
    depths: tuple[int, ...]
    """Blocks."""
    stage_heads: tuple[int, ...]
    """Attention heads."""
    inners: tuple[int, ...]
    """F, the inner width of feed-forward layers."""
    strides: tuple[int, ...]
    """Rows and columns of what goes before, or pixels, in a patch."""
    reductions: tuple[int, ...]
    """Rows and columns of patches in a key and value; 1 in the last stage, which has a class token."""
    dropout: float = 0.0
    """After positions are added."""
    drop_path: float = 0.0
    """How often a row does without a sublayer of the last block, while training; it grows linearly from 0 in the first
    block of the first stage (Huang et al. 2016)."""
    unroll: int | bool = 1
    """Blocks per loop iteration; True for no loop."""
    remat: Literal["none", "full", "attention", "dots", "offload"] = "none"
    """What a block keeps for its backward pass: see `nn.REMAT`."""

    def __post_init__(self):
        check_fields(self)
        check_rates(self, "dropout", "drop_path")
        names = "widths", "depths", "stage_heads", "inners", "strides", "reductions"
        check_stages(self, *names)
        if self.reductions[-1] != 1:
            raise ValueError(f"the last stage must have keys of all its patches, got one of {self.reductions[-1]}")
        own = self.patches.embed, self.patches.patch, self.first.embed, self.first.attention.heads
        own = (*own, self.first.feedforward.inner)
        said = self.widths[0], (self.strides[0],) * 2, self.widths[0], self.stage_heads[0], self.inners[0]
        if own != said:
            raise ValueError(f"the first stage must be as its patches and blocks are, {own}, got {said}")

    @property
    def stage_patches(self) -> tuple[PatchConfig, ...]:
        """The layer that makes the patches of every stage."""
        found = [self.patches]
        for width, stride in zip(self.widths[1:], self.strides[1:], strict=True):
            before = found[-1]
            found.append(
                with_fields(before, embed=width, image=before.grid, patch=(stride, stride), channels=before.embed)
            )
        return tuple(found)

    @property
    def stages(self) -> tuple[StageConfig, ...]:
        """Every stage's stack of blocks."""
        found = []
        for i, patches in enumerate(self.stage_patches):
            like = with_fields(self.first, embed=self.widths[i], heads=self.stage_heads[i], inner=self.inners[i])
            attention, ratio = GridAttentionConfig(attention=like.attention), self.reductions[i]
            if ratio > 1:
                keys = with_fields(patches, image=patches.grid, patch=(ratio, ratio), channels=patches.embed)
                attention = SpatialReductionConfig(
                    attention=like.attention, patches=keys, norm_eps=like.residual.norm_eps
                )
            block = GridBlockConfig(attention=attention, feedforward=like.feedforward, residual=like.residual)
            found.append(StageConfig(block=block, depth=self.depths[i], unroll=self.unroll, remat=self.remat))
        return tuple(found)

    @property
    def block(self) -> GridBlockConfig:
        """The blocks of the last stage, whose width hidden states have."""
        return self.stages[-1].block

    def build(self, rngs: nnx.Rngs) -> "PVT":
        """Make the encoder."""
        return PVT(self, rngs=rngs)


class StageEmbedding(Module):
    """Patches of an image, or of what a stage gives, with a norm and positions, perhaps after a class token."""

    def __init__(self, cfg: PatchConfig, *, eps: float, class_token: bool, rngs: nnx.Rngs):
        self.patches = cfg.build(rngs)
        self.norm = make_norm("layer", cfg.embed, eps=eps, precision=cfg.precision, rngs=rngs)
        rows, columns = cfg.grid
        tables = {"class_token": 1} if class_token else {}
        for name, count in (tables | {"positions": rows * columns + class_token}).items():
            setattr(self, name, make_table(rngs, count, cfg.embed, cfg.precision))

    def __call__(
        self, images: Float[Array, "*B H W C"], rate: float, *, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "*B T D"], Grid]:
        """Embed images of any size, with dropout; give their grid, too. Positions are resampled, bilinear."""
        cfg = self.patches.cfg
        grid = Grid(*cfg.grid_of(*images.shape[-3:-1]))
        x = widen(self.norm(self.patches(images)))
        token = hasattr(self, "class_token")
        if token:
            first = jnp.broadcast_to(self.class_token[...], (*x.shape[:-2], 1, cfg.embed))
            x = jnp.concatenate([first.astype(x.dtype), x], axis=-2)
        table = widen(self.positions[...])
        x = x + resample_positions(table, grid, tokens=int(token), grid=cfg.grid, kernel=bilinear)
        return constrain(dropout(x.astype(cfg.precision.residual), rate, key), "batch", "length", None), grid


class PVT(ReadsImages, Module):
    """Hidden states of the last stage's class token and patches."""

    @property
    def layer_order(self) -> Order:
        """Its stages, on top of each other."""
        stages = range(len(self.cfg.stages))
        return *(part for i in stages for part in (f"embeddings.{i}", Part(f"stages.{i}"))), "norm"

    def __init__(self, cfg: PVTConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        eps, last = cfg.first.residual.norm_eps, len(cfg.depths) - 1
        self.embeddings = nnx.List(
            [
                StageEmbedding(patches, eps=eps, class_token=i == last, rngs=rngs)
                for i, patches in enumerate(cfg.stage_patches)
            ]
        )
        self.stages = nnx.List([Trunk(stage, rngs=rngs) for stage in cfg.stages])
        self.norm = cfg.block.residual.make_norm(rngs)

    def features(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> list[tuple[Float[Array, "*B T D"], Grid]]:
        """Return what each stage makes of the one before, without a norm; the last begins with the class token."""
        cfg, found = self.cfg, []
        keys = split_keys(key, 2 * len(cfg.depths))
        rates = stage_drop_rates(cfg.drop_path, cfg.depths, key)
        for i, (embedding, stage) in enumerate(zip(self.embeddings, self.stages, strict=True)):
            if found:
                x, grid = found[-1]
                images = x.reshape(*x.shape[:-2], *grid, -1)
            x, grid = embedding(images, cfg.dropout, key=keys[2 * i])
            found.append((stage(x, key=keys[2 * i + 1], grid=grid, **rates[i]), grid))
        return found

    def __call__(
        self, images: Float[Array, "*B H W C"], *, mask: Mask | None = None, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B T D"]:
        """Encode images of any size that leaves each stage a patch.

        Args:
          mask: None; everything is seen.
          key: for dropout; None means none.

        Raises:
          ValueError: shapes that do not fit, or a mask.
        """
        if mask is not None:
            raise ValueError(f"all that is in an image is seen, got a mask {mask}")
        return self.norm(self.features(images, key=key)[-1][0])

    def memory_mask(self, mask: Mask | None) -> Mask | None:
        """Return which positions of the output are padding: images have none."""
        return None

    def hidden_states(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B T D"]:
        """Compute the last hidden states from the inputs of a batch; arguments as in a call."""
        return self(images, key=key)

    def over_patches(self, found: Sequence[np.ndarray], height: int, width: int) -> list[PatchAttention]:
        """Lay out what `ops.capture(f, "attention_weights")` gives of one image [height, width] over its patches."""
        cfg, laid = self.cfg, []
        patches = Tiles(Grid(height, width), (1, 1))
        for i, weights in enumerate(by_stack(found, cfg.depths)):
            stride, ratio = cfg.strides[i], cfg.reductions[i]
            patches = patches.merged(stride, stride)
            if i == len(cfg.depths) - 1:
                patches = patches._replace(tokens=("class_token",))
            laid.append(PatchAttention(f"stage {i + 1}", weights[:, 0], patches, patches.merged(ratio, ratio)))
        return laid


def _pvt(depths: tuple[int, ...], classes: int, image: int, precision: Precision) -> ClassifierConfig:
    encoder = PVTConfig(
        patches=PatchConfig(embed=64, image=(image, image), patch=(4, 4), init_std=0.02, precision=precision),
        first=transformer_block(
            embed=64, heads=1, inner=512, norm_eps=1e-6, norm_position="pre", activation="gelu", init_std=0.02,
            precision=precision,
        ),
        widths=(64, 128, 320, 512),
        depths=depths,
        stage_heads=(1, 2, 5, 8),
        inners=(512, 1024, 1280, 2048),
        strides=(4, 2, 2, 2),
        reductions=(8, 4, 2, 1),
    )  # fmt: skip
    return with_head(encoder, outputs=classes, pool="first")


def pvt_tiny(classes: int = 1000, *, image: int = 224, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return PVT-Tiny: 8 layers, D=64 … 512, 13.2 M parameters."""
    return _pvt((2, 2, 2, 2), classes, image, precision)


def pvt_small(classes: int = 1000, *, image: int = 224, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return PVT-Small: 16 layers, D=64 … 512, 24.5 M parameters."""
    return _pvt((3, 4, 6, 3), classes, image, precision)


def pvt_medium(classes: int = 1000, *, image: int = 224, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return PVT-Medium: 28 layers, D=64 … 512, 44.2 M parameters."""
    return _pvt((3, 4, 18, 3), classes, image, precision)


def pvt_large(classes: int = 1000, *, image: int = 224, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return PVT-Large: 41 layers, D=64 … 512, 61.4 M parameters."""
    return _pvt((3, 8, 27, 3), classes, image, precision)
