"""Swin: attention in shifted windows, on ever coarser grids (Liu et al. 2021, https://arxiv.org/abs/2103.14030).

Axes: B batch, H W height and width in pixels, C channels, P patches, T positions on a grid, M merged
ones, D width.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import ReadsImages
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.patch_attention import LARGEST, PatchAttention, Tiles, by_stack
from flax_transformer.models.vision.window_attention import WindowConfig, over_grid
from flax_transformer.nn import (
    FeedForwardConfig,
    Grid,
    GridBlockConfig,
    PatchConfig,
    PerLayer,
    Precision,
    StageConfig,
    Trunk,
    make_norm,
    transformer_block,
    with_fields,
)
from flax_transformer.nn.check import check_hidden, check_widths
from flax_transformer.nn.config import check_fields, check_rates
from flax_transformer.nn.grid import check_grid
from flax_transformer.nn.linear import Linear, Product, initializer
from flax_transformer.nn.module import Module
from flax_transformer.nn.table import make_table
from flax_transformer.ops import Mask, dropout, widen
from flax_transformer.ops.capture import capture_all
from flax_transformer.ops.resample import resample_positions
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Order, Part
from flax_transformer.parallel import constrain

FLOAT32 = Precision()
NORM_EPS = 1e-5
"""Of the norms of patches, whatever that of the blocks' is."""


class PatchMerging(Module):
    """A norm and a linear layer that make one patch of two by two, twice as wide."""

    def __init__(self, cfg: FeedForwardConfig, *, rngs: nnx.Rngs):
        """Make it as the layers of a stage are, of which `cfg` is the feed-forward layer."""
        self.embed = cfg.embed
        self.norm = make_norm("layer", 4 * cfg.embed, eps=NORM_EPS, precision=cfg.precision, rngs=rngs)
        self.project = Linear(
            4 * cfg.embed, 2 * cfg.embed, use_bias=False, kernel_init=initializer(cfg),
            dot_general=Product(), rngs=rngs, **cfg.precision.dtypes,
        )  # fmt: skip

    def __call__(self, x: Float[Array, "*B T D"], grid: Grid) -> Float[Array, "*B M 2*D"]:
        """Merge; an odd row or column at the edge is merged with zeros."""
        check_hidden(x, self.embed)
        check_grid(x, grid)
        *lead, _, D = x.shape
        x = x.reshape(*lead, *grid, D)
        x = jnp.pad(x, [(0, 0)] * len(lead) + [(0, side % 2) for side in grid] + [(0, 0)])
        parts = [x[..., row::2, column::2, :] for column in range(2) for row in range(2)]
        merged = jnp.concatenate(parts, axis=-1).reshape(*lead, -1, 4 * D)
        return constrain(self.project(self.norm(merged)), "batch", "length", None)


@frozen
class SwinConfig:
    """Patches, and stages of blocks on ever coarser grids."""

    patches: PatchConfig
    """How an image is cut into patches and embedded."""
    first: GridBlockConfig
    """The blocks of the first stage; those of each stage are twice as wide as those of the one before."""
    depths: tuple[int, ...]
    """Blocks of each stage."""
    stage_heads: tuple[int, ...]
    """Heads of the blocks of each stage."""
    position: Literal["learned", "none"] = "none"
    """Of patches, beside the biases for distances."""
    mask_token: bool = False
    """Whether there is a learned vector for patches that are masked."""
    end_norm: bool = True
    """Whether there is a norm after the last stage, for which a network that gives feature maps alone has no use."""
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
        check_widths(patches=self.patches.embed, first=self.first.embed)
        if not self.depths or len(self.depths) != len(self.stage_heads):
            raise ValueError(f"each stage must have a depth and heads, got {self.depths} and {self.stage_heads}")
        if self.first.attention.attention.heads != self.stage_heads[0]:
            raise ValueError(
                f"the first stage must have as many heads as its blocks, got {self.stage_heads[0]} and "
                f"{self.first.attention.attention.heads}"
            )

    @property
    def stages(self) -> tuple[StageConfig, ...]:
        """Every stage's stack of blocks."""
        embed, inner = self.first.embed, self.first.feedforward.inner
        return tuple(
            StageConfig(
                block=with_fields(self.first, embed=embed * 2**i, inner=inner * 2**i, heads=heads), depth=depth,
                unroll=self.unroll, remat=self.remat,
            )
            for i, (depth, heads) in enumerate(zip(self.depths, self.stage_heads, strict=True))
        )  # fmt: skip

    @property
    def block(self) -> GridBlockConfig:
        """The blocks of the last stage, whose width hidden states have."""
        return self.stages[-1].block

    @property
    def stage_widths(self) -> tuple[int, ...]:
        """Widths of `stage_states`."""
        return self.first.embed, *(stage.block.embed for stage in self.stages)

    def build(self, rngs: nnx.Rngs) -> "Swin":
        """Make the encoder."""
        return Swin(self, rngs=rngs)


class Swin(ReadsImages, Module):
    """Hidden states of the patches of an image, 2×2 of them merged after each stage but the last.

    `ops.capture(f, "grid_states")` gives `features`, each [*B, R, C, D] of rows and columns.
    """

    @property
    def layer_order(self) -> Order:
        """Its stages, on top of each other."""
        stages = (part for i in range(len(self.cfg.stages)) for part in (Part(f"stages.{i}"), f"merges.{i}"))
        return "patches", "patch_norm", "mask_token", "positions", *stages, "norm"

    def __init__(self, cfg: SwinConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        embed, precision = cfg.patches.embed, cfg.patches.precision
        self.patches = cfg.patches.build(rngs)
        self.patch_norm = make_norm("layer", embed, eps=NORM_EPS, precision=precision, rngs=rngs)
        rows, columns = cfg.patches.grid
        tables = {"mask_token": 1} if cfg.mask_token else {}
        tables |= {"positions": rows * columns} if cfg.position == "learned" else {}
        for name, count in tables.items():
            setattr(self, name, make_table(rngs, count, embed, precision))
        self.stages = nnx.List([Trunk(stage, rngs=rngs) for stage in cfg.stages])
        self.merges = nnx.List([PatchMerging(stage.block.feedforward, rngs=rngs) for stage in cfg.stages[:-1]])
        if cfg.end_norm:
            self.norm = cfg.block.residual.make_norm(rngs)

    def embed(
        self,
        images: Float[Array, "*B H W C"],
        *,
        masked: Bool[Array, "*#B P"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "*B T D"], Grid]:
        """Return what the first stage is given, and its grid; images are filled up with zeros to whole patches.

        Args:
          masked: patches in whose place the mask token stands.
          key: for dropout; None means none.

        Raises:
          ValueError: shapes that do not fit, or masked patches for a model without a mask token.
        """
        cfg, (high, wide) = self.cfg, self.cfg.patches.patch
        lead, (height, width) = images.ndim - 3, images.shape[-3:-1]
        images = jnp.pad(images, [(0, 0)] * lead + [(0, -height % high), (0, -width % wide), (0, 0)])
        grid = Grid(*cfg.patches.grid_of(*images.shape[-3:-1]))
        x = widen(self.patch_norm(self.patches(images)))
        if masked is not None:
            if not cfg.mask_token:
                raise ValueError("a model without a mask token must not be given masked patches, got some")
            x = jnp.where(masked[..., None], self.mask_token[...], x)
        if cfg.position == "learned":
            x = x + resample_positions(widen(self.positions[...]), grid, tokens=0, grid=cfg.patches.grid)
        x = dropout(x.astype(cfg.patches.precision.residual), cfg.dropout, key)
        return constrain(x, "batch", "length", None), grid

    def features(
        self,
        images: Float[Array, "*B H W C"],
        *,
        masked: Bool[Array, "*#B P"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> list[tuple[Float[Array, "*B T D"], Grid]]:
        """Return what each stage makes of the one before and merges, without a norm; the first is what goes in."""
        depths = self.cfg.depths
        keys = split_keys(key, len(depths) + 1)
        rates = jnp.linspace(0, self.cfg.drop_path, sum(depths)) if self.cfg.drop_path and key is not None else None
        found = [_marked(*self.embed(images, masked=masked, key=keys[-1]))]
        for i, stage in enumerate(self.stages):
            x, grid = found[-1]
            given = {"grid": grid, "shift": PerLayer(jnp.arange(depths[i]) % 2 * (stage.cfg.block.attention.size // 2))}
            if rates is not None:
                given["drop_path"] = PerLayer(rates[sum(depths[:i]) :][: depths[i]])
            x = stage(x, key=keys[i], **given)
            if i < len(self.merges):
                x, grid = self.merges[i](x, grid), Grid(*(-(-side // 2) for side in grid))
            found.append(_marked(x, grid))
        return found

    def stage_states(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> list[Float[Array, "*B R C D"]]:
        """Return what the first stage is given, and what each gives before its patches are merged."""
        run = partial(self.hidden_states, key=key)
        seen = capture_all(run, ("grid_states", "trunk_output").__contains__)(images)[1]
        given = seen["grid_states"]
        ends = (x.reshape(*y.shape[:-1], x.shape[-1]) for x, y in zip(seen["trunk_output"], given, strict=False))
        return [given[0], *ends]

    def over_patches(self, found: Sequence[np.ndarray], height: int, width: int) -> list[PatchAttention]:
        """Lay out what `ops.capture(f, "attention_weights")` gives of one image [height, width] over its patches.

        A head sees nothing beyond its window.
        """
        cfg, laid = self.cfg, []
        size = cfg.patches.patch
        patches = Tiles(Grid(-(-height // size[0]), -(-width // size[1])), size)
        for i, stack in enumerate(by_stack(found, cfg.depths, axes=5)):  # [L, 1, W, N, T, S] of W windows
            window, few = self.stages[i].cfg.block.attention.size, math.prod(patches.grid) ** 2 <= LARGEST
            shifts = [layer % 2 * (window // 2) for layer in range(cfg.depths[i])]
            maps = (
                [over_grid(*each, patches.grid, window) for each in zip(stack[:, 0], shifts, strict=True)]
                if few
                else None
            )
            weights = None if maps is None else np.stack(maps)
            laid.append(PatchAttention(f"stage {i + 1}", weights, patches, patches))
            patches = patches.merged(2, 2, Grid(*(-(-side // 2) for side in patches.grid)))
        return laid

    def __call__(
        self,
        images: Float[Array, "*B H W C"],
        *,
        masked: Bool[Array, "*#B P"] | None = None,
        mask: Mask | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Encode images of any size.

        Args:
          masked: patches in whose place the mask token stands.
          mask: None; windows see all that is in them.
          key: for dropout; None means none.

        Raises:
          ValueError: as `embed`, or for a mask.
        """
        if mask is not None:
            raise ValueError(f"windows see all that is in them, got a mask {mask}")
        x = self.features(images, masked=masked, key=key)[-1][0]
        return self.norm(x) if self.cfg.end_norm else x

    def memory_mask(self, mask: Mask | None) -> Mask | None:
        """Return which positions of the output are padding: images have none."""
        return None

    def hidden_states(
        self,
        images: Float[Array, "*B H W C"],
        *,
        masked: Bool[Array, "*#B P"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Compute the last hidden states from the inputs of a batch; arguments as in a call."""
        return self(images, masked=masked, key=key)


def _marked(x: Float[Array, "*B T D"], grid: Grid) -> tuple[Float[Array, "*B T D"], Grid]:
    """Mark what a stage gives, on its grid."""
    return checkpoint_name(x.reshape(*x.shape[:-2], *grid, -1), "grid_states").reshape(x.shape), grid


def swin_encoder(
    embed: int, depths: tuple[int, ...], heads: tuple[int, ...], *, image: int, patch: int = 4, window: int = 7,
    precision: Precision = FLOAT32,
) -> SwinConfig:  # fmt: skip
    """Return an encoder of square patches, images and windows.

    Args:
      embed: D of the first stage.
      depths, heads: of each stage.

    >>> swin_encoder(8, (1, 2), (2, 4), image=32).block.embed
    16
    """
    like = transformer_block(
        embed=embed, heads=heads[0], inner=4 * embed, norm_position="pre", activation="gelu", init_std=0.02,
        precision=precision,
    )  # fmt: skip
    return SwinConfig(
        patches=PatchConfig(
            embed=embed, image=(image, image), patch=(patch, patch), init_std=0.02, precision=precision
        ),
        first=GridBlockConfig(
            attention=WindowConfig(attention=like.attention, size=window),
            feedforward=like.feedforward,
            residual=like.residual,
        ),
        depths=depths,
        stage_heads=heads,
        drop_path=0.1,
    )


def _swin(
    embed: int, depths: tuple[int, ...], heads: tuple[int, ...], classes: int, image: int, precision: Precision
) -> ClassifierConfig:
    encoder = swin_encoder(embed, depths, heads, image=image, precision=precision)
    return with_head(encoder, outputs=classes, pool="mean")


def swin_tiny(classes: int = 1000, *, image: int = 224, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return Swin-T: 12 layers, D=96 … 768, 28.3 M parameters."""
    return _swin(96, (2, 2, 6, 2), (3, 6, 12, 24), classes, image, precision)


def swin_small(classes: int = 1000, *, image: int = 224, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return Swin-S: 24 layers, D=96 … 768, 49.6 M parameters."""
    return _swin(96, (2, 2, 18, 2), (3, 6, 12, 24), classes, image, precision)


def swin_base(classes: int = 1000, *, image: int = 224, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return Swin-B: 24 layers, D=128 … 1024, 87.8 M parameters."""
    return _swin(128, (2, 2, 18, 2), (4, 8, 16, 32), classes, image, precision)


def swin_large(classes: int = 1000, *, image: int = 224, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return Swin-L: 24 layers, D=192 … 1536, 196.5 M parameters."""
    return _swin(192, (2, 2, 18, 2), (6, 12, 24, 48), classes, image, precision)
