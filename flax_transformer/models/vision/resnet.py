"""ResNet: convolutions around which their inputs are added (He et al. 2015, https://arxiv.org/abs/1512.03385).

Every part is called as `part(x, by)`, where `by` says how batch norms normalise (`nn.batch_norm.Normalise`), and gives
new statistics beside its result, under the paths they have in the part.

Axes: B batch, H W height and width, C channels, P places of the last feature map, D its width.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import ReadsImages
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.nn import ConvConfig, Precision
from flax_transformer.nn.batch_norm import BatchNorm, ConvNorm, FrozenBatchNorm, Normalise, by_batch, by_running
from flax_transformer.nn.check import check_images
from flax_transformer.nn.config import check_at_least, check_fields
from flax_transformer.nn.module import Module
from flax_transformer.nn.stack import layer, stack_depth
from flax_transformer.ops import Mask, activation
from flax_transformer.ops.capture import capture
from flax_transformer.ops.convolution import max_pool
from flax_transformer.ops.eager_call import reused
from flax_transformer.ops.platform import platform
from flax_transformer.order import Layer, Order, Part, Stack

FLOAT32 = Precision()
Statistics = dict[str, Any]


@frozen
class ResNetConfig:
    """A stem that makes images a quarter as high and wide, and stages of which each but the first halves them."""

    channels: int = 3
    """C, of the images."""
    stem: int = 64
    """Channels after the stem."""
    small: bool = False
    """Whether the stem is a convolution of 3×3 that leaves small images as large as they are."""
    widths: tuple[int, ...] = (256, 512, 1024, 2048)
    """Channels after each stage."""
    depths: tuple[int, ...] = (3, 4, 6, 3)
    """Blocks of each stage."""
    block: Literal["basic", "bottleneck"] = "bottleneck"
    """Two convolutions of 3×3, or one between two of 1×1 at a quarter of the channels."""
    activation: str | Callable = "relu"
    """After the stem and after each block; within a block it is ReLU."""
    halve_first: bool = False
    """Whether the first stage halves too."""
    halve_early: bool = False
    """Whether a bottleneck halves in its first convolution, as published first, and not in that of 3×3."""
    dilated: bool = False
    """Whether the last stage keeps the size of what it is given, and its windows of 3×3 after the first, which would
    have halved it, are as far apart as they would be then (DC5)."""
    frozen: bool = False
    """Whether batch norms stay as they are: constants, statistics and factors alike."""
    norm_eps: float = 1e-5
    """Epsilon of batch norm."""
    norm_decay: float = 0.9
    """What is kept of the running statistics in every step."""
    init_std: float | None = None
    """Standard deviation kernels start with; None: He's."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "channels", "stem")
        check_at_least(self, 0, "norm_eps", "init_std")
        activation(self.activation)
        if not self.widths or len(self.widths) != len(self.depths) or min(self.widths + self.depths) < 1:
            raise ValueError(f"every stage needs a width and a depth, got {self.widths}, {self.depths}")
        if self.block == "bottleneck" and any(width % REDUCTION for width in self.widths):
            raise ValueError(f"the widths of bottlenecks must be multiples of {REDUCTION}, got {self.widths}")

    @property
    def embed(self) -> int:
        """D, the width of the hidden states."""
        return self.widths[-1]

    @property
    def stage_widths(self) -> tuple[int, ...]:
        """Widths of `stage_states`."""
        return self.stem, *self.widths

    @property
    def stride(self) -> int:
        """Rows, and columns, of pixels for each of the last feature map."""
        return (1 if self.small else 4) * math.prod(stride for stride, _ in self.steps)

    @property
    def steps(self) -> tuple[tuple[int, int], ...]:
        """Of each stage the stride, and the dilation after it."""
        strides = (1 + self.halve_first, *(2,) * (len(self.widths) - 1))
        steps = [(stride, 1) for stride in strides]
        return (*steps[:-1], steps[-1][::-1]) if self.dilated else tuple(steps)

    def build(self, rngs: nnx.Rngs) -> "ResNet":
        """Make the network."""
        return ResNet(self, rngs=rngs)


REDUCTION = 4
"""How much narrower a bottleneck is inside."""


class ResNet(ReadsImages, Module):
    """Hidden states of images, the places of the last feature map; `observe` gives new batch statistics beside."""

    @property
    def layer_order(self) -> Order:
        """Its stages, on top of each other."""
        return "stem", *(Part(f"stage{i + 1}") for i in range(len(self.cfg.depths)))

    def __init__(self, cfg: ResNetConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        window, stride = (3, 1) if cfg.small else (7, 2)
        self.stem = _conv_norm(cfg, cfg.channels, cfg.stem, window, stride, rngs=rngs)
        channels = (cfg.stem, *cfg.widths)
        for i, (depth, step) in enumerate(zip(cfg.depths, cfg.steps, strict=True)):
            setattr(self, f"stage{i + 1}", Stage(cfg, channels[i], channels[i + 1], depth, step, rngs=rngs))

    def features(self, images: Float[Array, "*B H W C"], by: Normalise) -> tuple[Float[Array, "*B I J D"], Statistics]:
        """Compute the last feature map, and new statistics, by what batch norms are to do.

        Raises:
          ValueError: shapes that do not fit.
        """
        check_images(images, self.cfg.channels)
        new: Statistics = {}
        x, new["stem"] = self.stem(images, by)
        x = activation(self.cfg.activation)(x)
        x = x if self.cfg.small else max_pool(x, 3, stride=2, padding=1)
        for i in range(len(self.cfg.depths)):
            x, new[f"stage{i + 1}"] = getattr(self, f"stage{i + 1}")(x, by)
        return x, new

    def feature_map(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B I J D"]:
        """Compute the last feature map of images of any size, by the running statistics.

        A key changes nothing, as there is no dropout.

        Raises:
          ValueError: shapes that do not fit.
        """
        return self.features(images, by_running)[0]

    def stage_states(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> list[Float[Array, "*B I J D"]]:
        """Return what every stage is given, and what the last gives."""
        last, given = capture(partial(self.feature_map, key=key), "hidden_states")(images)
        return [*given, last]

    def __call__(
        self, images: Float[Array, "*B H W C"], *, mask: Mask | None = None, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B P D"]:
        """Compute the places of the last feature map, line by line, as `feature_map` does.

        Args:
          mask: None; a convolution sees all that is in its window.
          key: changes nothing.

        Raises:
          ValueError: as `feature_map`, or for a mask.
        """
        if mask is not None:
            raise ValueError(f"convolutions see all that is in their windows, got a mask {mask}")
        return _rows(self.feature_map(images))

    def hidden_states(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B P D"]:
        """Compute the hidden states from the inputs of a batch; arguments as in a call."""
        return self(images, key=key)

    def observe(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "*B P D"], Statistics]:
        """Compute the hidden states by the statistics of the batch; give the new running ones beside.

        `objective.BatchStatistics` trains by it.
        """
        x, statistics = self.observe_map(images)
        return _rows(x), statistics

    def observe_map(self, images: Float[Array, "*B H W C"]) -> tuple[Float[Array, "*B I J D"], Statistics]:
        """Compute the last feature map as `observe` does."""
        return self.features(images, by_batch)

    def memory_mask(self, mask: Mask | None) -> Mask | None:
        """Return which positions of the output are padding: images have none."""
        return None


def _conv_norm(
    cfg: ResNetConfig, channels: int, features: int, window: int, stride: int = 1, dilation: int = 1, *,
    rngs: nnx.Rngs,
) -> ConvNorm:  # fmt: skip
    convolution = ConvConfig(
        channels=channels, features=features, window=(window, window), stride=stride, dilation=dilation,
        padding=dilation * (window // 2), bias=False, init_std=cfg.init_std, precision=cfg.precision,
    )  # fmt: skip
    kind = FrozenBatchNorm if cfg.frozen else BatchNorm
    return ConvNorm(convolution, kind(features, decay=cfg.norm_decay, eps=cfg.norm_eps), rngs=rngs)


class ResNetBlock(Module):
    """Convolutions, and what they are given added; a convolution of 1×1 fits that where sizes differ."""

    def __init__(
        self, cfg: ResNetConfig, channels: int, features: int, stride: int, dilations: tuple[int, int], *,
        rngs: nnx.Rngs,
    ):  # fmt: skip
        self.cfg = cfg
        make = partial(_conv_norm, cfg, rngs=rngs)
        if cfg.block == "basic":
            self.first = make(channels, features, 3, stride, dilations[0])
            self.second = make(features, features, 3, 1, dilations[1])
        else:
            inner, strides = features // REDUCTION, (stride, 1) if cfg.halve_early else (1, stride)
            self.first = make(channels, inner, 1, strides[0])
            self.second = make(inner, inner, 3, strides[1], dilations[0])
            self.third = make(inner, features, 1)
        if channels != features or stride != 1:
            self.shortcut = make(channels, features, 1, stride)

    def __call__(self, x: Float[Array, "*B H W C"], by: Normalise) -> tuple[Float[Array, "*B I J D"], Statistics]:
        """Apply the block."""
        new: Statistics = {}
        names = [name for name in ("first", "second", "third") if hasattr(self, name)]
        y = x
        for name in names:
            y, new[name] = getattr(self, name)(y, by)
            y = y if name == names[-1] else jax.nn.relu(y)
        if hasattr(self, "shortcut"):
            x, new["shortcut"] = self.shortcut(x, by)
        return activation(self.cfg.activation)(x + y), new


class Stage(Module):
    """A block that changes the sizes, and a stack of equal ones."""

    layer_order = (Layer("first"), Stack("rest"))

    def __init__(
        self, cfg: ResNetConfig, channels: int, features: int, depth: int, step: tuple[int, int], *, rngs: nnx.Rngs
    ):
        stride, dilation = step
        self.first = ResNetBlock(cfg, channels, features, stride, (1, dilation), rngs=rngs)
        if depth > 1:
            both = (dilation, dilation)

            def make(key):
                return ResNetBlock(cfg, features, features, 1, both, rngs=nnx.Rngs(key))

            self.rest = jax.vmap(make)(jax.random.split(rngs.params(), depth - 1))

    def __call__(self, x: Float[Array, "*B H W C"], by: Normalise) -> tuple[Float[Array, "*B I J D"], Statistics]:
        """Apply the blocks."""
        x, first = self.first(checkpoint_name(x, "hidden_states"), by)
        if not hasattr(self, "rest"):
            return x, {"first": first}
        x, rest = _in_turn(self.rest, x, by)
        return x, {"first": first, "rest": rest}


@reused
def _in_turn(blocks: ResNetBlock, x: Array, by: Normalise) -> tuple[Array, Statistics]:
    if platform() != "cpu":
        return jax.lax.scan(lambda x, block: block(x, by), x, blocks)
    # In a loop XLA on a CPU computes the gradients of a convolution tens of times slower.
    found = []
    for i in range(stack_depth(blocks)):
        x, new = layer(blocks, i)(x, by)
        found.append(new)
    return x, jax.tree.map(lambda *each: jnp.stack(each), *found)


def _rows(x: Array) -> Array:
    return x.reshape(*x.shape[:-3], -1, x.shape[-1])


def _resnet(
    block: str, widths: tuple[int, ...], depths: tuple[int, ...], classes: int, precision: Precision
) -> ClassifierConfig:
    backbone = ResNetConfig(block=block, widths=widths, depths=depths, precision=precision)
    return with_head(backbone, outputs=classes, pool="mean")


NARROW, WIDE = (64, 128, 256, 512), (256, 512, 1024, 2048)


def resnet18(classes: int = 1000, *, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return ResNet-18: 11.7 M parameters."""
    return _resnet("basic", NARROW, (2, 2, 2, 2), classes, precision)


def resnet34(classes: int = 1000, *, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return ResNet-34: 21.8 M parameters."""
    return _resnet("basic", NARROW, (3, 4, 6, 3), classes, precision)


def resnet50(classes: int = 1000, *, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return ResNet-50: 25.6 M parameters."""
    return _resnet("bottleneck", WIDE, (3, 4, 6, 3), classes, precision)


def resnet101(classes: int = 1000, *, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return ResNet-101: 44.5 M parameters."""
    return _resnet("bottleneck", WIDE, (3, 4, 23, 3), classes, precision)


def resnet152(classes: int = 1000, *, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return ResNet-152: 60.2 M parameters."""
    return _resnet("bottleneck", WIDE, (3, 8, 36, 3), classes, precision)
