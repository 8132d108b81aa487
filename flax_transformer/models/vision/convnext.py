"""ConvNeXt: a convolutional network with the manners of Transformers (Liu et al. 2022, https://arxiv.org/abs/2201.03545).

Axes: B batch, H W height and width in pixels, C channels, I J height and width of a feature map, T its places, D width.
"""

from collections.abc import Callable
from typing import Any, Literal

from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import ReadsImages
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.nn import (
    ConvConfig,
    FeedForwardConfig,
    Grid,
    Precision,
    ResidualConfig,
    StageConfig,
    Trunk,
    make_norm,
)
from flax_transformer.nn.check import check_images
from flax_transformer.nn.config import check_at_least, check_fields, check_rates
from flax_transformer.nn.grid import check_grid
from flax_transformer.nn.module import Module
from flax_transformer.nn.norm import no_norm
from flax_transformer.nn.residual import Residual
from flax_transformer.nn.trunk import stage_drop_rates
from flax_transformer.ops import Mask, activation
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Order, Part

FLOAT32 = Precision()
WINDOW, INNER, NORM_EPS = 7, 4, 1e-6
"""The window of blocks, how many times wider they are inside, and what their norms add to a variance."""


@frozen
class ConvNextConfig:
    """Patches, and stages of blocks on ever coarser feature maps."""

    channels: int = 3
    """C, of the images."""
    patch: int = 4
    """Height and width of the patches that images are cut into."""
    widths: tuple[int, ...] = (96, 192, 384, 768)
    """D of each stage."""
    depths: tuple[int, ...] = (3, 3, 9, 3)
    """Blocks of each stage."""
    activation: str | Callable = "gelu"
    """Of the layer between the two pointwise ones."""
    layer_scale: float | None = 1e-6
    """What the learned factor of every channel of a block starts with; None: there are no such factors."""
    drop_path: float = 0.0
    """How often a row does without the last block, while training; it grows linearly from 0 in the first (Huang et al.
    2016)."""
    init_std: float | None = 0.02
    """Standard deviation kernels start with; None: He's and Xavier's."""
    unroll: int | bool = 1
    """Blocks per loop iteration; True for no loop."""
    remat: Literal["none", "full", "attention", "dots", "offload"] = "none"
    """What a block keeps for its backward pass: see `nn.REMAT`."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "channels", "patch")
        check_at_least(self, 0, "layer_scale", "init_std")
        check_rates(self, "drop_path")
        activation(self.activation)
        if not self.widths or len(self.widths) != len(self.depths) or min(self.widths + self.depths) < 1:
            raise ValueError(f"every stage needs a width and a depth, got {self.widths}, {self.depths}")

    @property
    def embed(self) -> int:
        """D, the width of the hidden states."""
        return self.widths[-1]

    @property
    def stage_widths(self) -> tuple[int, ...]:
        """Widths of `stage_states`."""
        return self.widths[0], *self.widths

    def block(self, width: int) -> "ConvNextBlockConfig":
        """Return the config of the blocks of one width."""
        return ConvNextBlockConfig(
            convolution=ConvConfig(
                channels=width, features=width, window=(WINDOW, WINDOW), padding=WINDOW // 2, groups=width,
                init_std=self.init_std, precision=self.precision,
            ),
            feedforward=FeedForwardConfig(
                embed=width, inner=INNER * width, activation=self.activation, init_std=self.init_std,
                precision=self.precision,
            ),
            residual=ResidualConfig(
                embed=width, norm=no_norm, layer_scale=self.layer_scale, precision=self.precision
            ),
        )  # fmt: skip

    def build(self, rngs: nnx.Rngs) -> "ConvNext":
        """Make the network."""
        return ConvNext(self, rngs=rngs)


class ConvNext(ReadsImages, Module):
    """Hidden states of images: the places of the last feature map, line by line."""

    @property
    def layer_order(self) -> Order:
        """Its stages, on top of each other."""
        stages = range(1, 1 + len(self.cfg.widths))
        return "patches", "norm", *(part for i in stages for part in (f"merge{i}", Part(f"stage{i}")))

    def __init__(self, cfg: ConvNextConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.patches = _downsampling(cfg, cfg.channels, cfg.widths[0], cfg.patch).build(rngs)
        self.norm = _norm(cfg, cfg.widths[0], rngs)
        for i, (width, depth) in enumerate(zip(cfg.widths, cfg.depths, strict=True)):
            if i:
                setattr(self, f"merge{i + 1}", Downsampling(cfg, cfg.widths[i - 1], width, rngs=rngs))
            stage = StageConfig(block=cfg.block(width), depth=depth, unroll=cfg.unroll, remat=cfg.remat)
            setattr(self, f"stage{i + 1}", Trunk(stage, rngs=rngs))

    def feature_map(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B I J D"]:
        """Compute the last feature map of images of any size; a key is for stochastic depth.

        Raises:
          ValueError: shapes that do not fit.
        """
        return self.stage_states(images, key=key)[-1]

    def stage_states(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> list[Float[Array, "*B I J D"]]:
        """Return what every stage is given, and what the last gives; arguments and errors as of `feature_map`."""
        cfg, depths = self.cfg, self.cfg.depths
        check_images(images, cfg.channels)
        keys, rates = split_keys(key, len(depths)), stage_drop_rates(cfg.drop_path, depths, key)
        states = [self.norm(self.patches(images))]
        for i in range(len(depths)):
            states[i] = x = checkpoint_name(states[i], "hidden_states")
            x = getattr(self, f"merge{i + 1}")(x) if i else x
            shape, grid = x.shape, Grid(*x.shape[-3:-1])
            stage = getattr(self, f"stage{i + 1}")
            states.append(stage(_places(x), grid=grid, key=keys[i], **rates[i]).reshape(shape))
        return states

    def __call__(
        self, images: Float[Array, "*B H W C"], *, mask: Mask | None = None, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B T D"]:
        """Compute the places of the last feature map, line by line, as `feature_map` does.

        Args:
          mask: None; a convolution sees all that is in its window.
          key: for stochastic depth; None means none.

        Raises:
          ValueError: as `feature_map`, or for a mask.
        """
        if mask is not None:
            raise ValueError(f"convolutions see all that is in their windows, got a mask {mask}")
        return _places(self.feature_map(images, key=key))

    def hidden_states(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B T D"]:
        """Compute the hidden states from the inputs of a batch; arguments as in a call."""
        return self(images, key=key)

    def memory_mask(self, mask: Mask | None) -> Mask | None:
        """Return which positions of the output are padding: images have none."""
        return None


@frozen
class ConvNextBlockConfig:
    """A depthwise convolution, a norm and a feed-forward layer, a residual around them all."""

    convolution: ConvConfig
    """The depthwise convolution."""
    feedforward: FeedForwardConfig
    """The feed-forward layer."""
    residual: ResidualConfig
    """Around the whole block."""

    @property
    def embed(self) -> int:
        """D, the width of the residual stream."""
        return self.residual.embed

    def build(self, rngs: nnx.Rngs) -> "ConvNextBlock":
        """Make the block."""
        return ConvNextBlock(self, rngs=rngs)


class ConvNextBlock(Module):
    """One layer of a stage."""

    def __init__(self, cfg: ConvNextBlockConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.convolution = cfg.convolution.build(rngs)
        self.norm = _norm(cfg.feedforward, cfg.embed, rngs)
        self.feedforward = cfg.feedforward.build(rngs)
        self.residual = Residual(cfg.residual, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        *,
        grid: Grid,
        drop_path: Float[Array, ""] | float | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Apply the block.

        Args:
          grid: where the positions are.
          drop_path: how often a row does without it, in place of what the config says.
          key: for stochastic depth; None means none.

        Raises:
          ValueError: shapes that do not fit.
        """
        check_grid(x, grid)

        def sublayer(x: Array, *, key: PRNGKeyArray | None) -> Array:
            y = self.convolution(x.reshape(*x.shape[:-2], *grid, x.shape[-1]))
            return self.feedforward(self.norm(_places(y)), key=key)

        return self.residual(x, sublayer, key=key, drop_path=drop_path)


class Downsampling(Module):
    """A norm and a convolution that make one place of two by two."""

    def __init__(self, cfg: ConvNextConfig, channels: int, features: int, *, rngs: nnx.Rngs):
        self.norm = _norm(cfg, channels, rngs)
        self.convolution = _downsampling(cfg, channels, features, 2).build(rngs)

    def __call__(self, x: Float[Array, "*B H W C"]) -> Float[Array, "*B I J D"]:
        """Downsample; an odd row or column at the edge is left out."""
        return self.convolution(self.norm(x))


def _downsampling(cfg: ConvNextConfig, channels: int, features: int, window: int) -> ConvConfig:
    return ConvConfig(
        channels=channels, features=features, window=(window, window), stride=window, init_std=cfg.init_std,
        precision=cfg.precision,
    )  # fmt: skip


def _norm(like: Any, width: int, rngs: nnx.Rngs) -> Callable[[Array], Array]:
    return make_norm("layer", width, eps=NORM_EPS, precision=like.precision, rngs=rngs)


def _places(x: Array) -> Array:
    return x.reshape(*x.shape[:-3], -1, x.shape[-1])


def _convnext(
    widths: tuple[int, ...], depths: tuple[int, ...], drop_path: float, classes: int, precision: Precision
) -> ClassifierConfig:
    backbone = ConvNextConfig(widths=widths, depths=depths, drop_path=drop_path, precision=precision)
    return with_head(backbone, outputs=classes, pool="mean", norm=1e-12)


def convnext_tiny(classes: int = 1000, *, drop_path: float = 0.1, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return ConvNeXt-T: 18 blocks, D=96 … 768, 28.6 M parameters."""
    return _convnext((96, 192, 384, 768), (3, 3, 9, 3), drop_path, classes, precision)


def convnext_small(classes: int = 1000, *, drop_path: float = 0.4, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return ConvNeXt-S: 36 blocks, D=96 … 768, 50.2 M parameters."""
    return _convnext((96, 192, 384, 768), (3, 3, 27, 3), drop_path, classes, precision)


def convnext_base(classes: int = 1000, *, drop_path: float = 0.5, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return ConvNeXt-B: 36 blocks, D=128 … 1024, 88.6 M parameters."""
    return _convnext((128, 256, 512, 1024), (3, 3, 27, 3), drop_path, classes, precision)


def convnext_large(classes: int = 1000, *, drop_path: float = 0.5, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return ConvNeXt-L: 36 blocks, D=192 … 1536, 197.8 M parameters."""
    return _convnext((192, 384, 768, 1536), (3, 3, 27, 3), drop_path, classes, precision)
