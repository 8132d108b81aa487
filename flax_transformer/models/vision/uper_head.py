"""The heads of semantic segmentation: feature maps of several sizes in, features of one map out.

UPerNet's (Xiao et al. 2018, https://arxiv.org/abs/1807.10221) has the pyramid pooling of PSPNet (Zhao et al. 2017,
https://arxiv.org/abs/1612.01105) on the coarsest map, and a feature pyramid (Lin et al. 2017,
https://arxiv.org/abs/1612.03144) down to the finest; a fully convolutional one (Long et al. 2015,
https://arxiv.org/abs/1411.4038) on one map helps in training. SegFormer's (Xie et al. 2021,
https://arxiv.org/abs/2105.15203) is of linear layers alone. As in `resnet`, every part is called as `part(x, by)`,
where `by` says how batch norms normalise, and gives new statistics beside its result.

Axes: B batch, I J height and width of a feature map, C channels, D width, E classes.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.nn import ConvConfig, Precision, UpConvConfig
from flax_transformer.nn.batch_norm import BatchNorm, ConvNorm, Normalise
from flax_transformer.nn.config import check_at_least, check_fields
from flax_transformer.nn.linear import Linear, initializer
from flax_transformer.nn.module import Module
from flax_transformer.ops import adaptive_mean, bilinear, resample
from flax_transformer.ops.activation import gelu
from flax_transformer.ops.convolution import max_pool

Statistics = dict[str, Any]
Maps = Sequence[Float[Array, "..."]]
"""[*B, I, J, C] each, the finest first."""


class OfMaps:
    """What configs of heads have in common: their channels are those of feature maps."""

    def fitted(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Keep the channels where the fields of another image are given."""
        return {**fields, "channels": self.channels}

    def check_channels(self) -> None:
        """Raise ValueError unless a head of all maps has channels of each, and widths that can be."""
        check_fields(self)
        check_at_least(self, 1, "outputs", "embed")
        check_at_least(self, 0, "init_std")
        if not self.channels or min(self.channels) < 1:
            raise ValueError(f"every map needs channels, got {self.channels}")


@frozen
class UPerHeadConfig(OfMaps):
    """Pyramid pooling, a feature pyramid, and a convolution of all its levels."""

    channels: tuple[int, ...]
    """C of each map, the finest first."""
    outputs: int
    """E, the classes that are scored."""
    embed: int = 512
    """D, the width of all levels and of what comes."""
    pools: tuple[int, ...] = (1, 2, 3, 6)
    """Into how many rows and columns the coarsest map is averaged, once each."""
    init_std: float | None = None
    """Standard deviation kernels start with; None: He's."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        self.check_channels()
        if self.pools and min(self.pools) < 1:
            raise ValueError(f"maps are averaged into at least 1 row and column, got {self.pools}")

    def build(self, rngs: nnx.Rngs) -> "UPerHead":
        """Make the head."""
        return UPerHead(self, rngs=rngs)


class UPerHead(Module):
    """Features [*B, I, J, D] as fine as the finest map; `output` scores classes by them."""

    def __init__(self, cfg: UPerHeadConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        make, D = partial(_conv_norm, cfg, rngs=rngs), cfg.embed
        for i, channels in enumerate(cfg.channels[:-1]):
            setattr(self, f"lateral{i}", make(channels, D, 1))
            setattr(self, f"smooth{i}", make(D, D, 3))
        last = cfg.channels[-1]
        for i in range(len(cfg.pools)):
            setattr(self, f"pool{i}", make(last, D, 1))
        self.bottleneck = make(last + len(cfg.pools) * D, D, 3)
        self.fuse = make(len(cfg.channels) * D, D, 3)
        self.output = Linear(D, cfg.outputs, rngs=rngs, **cfg.precision.dtypes)

    def __call__(self, maps: Maps, by: Normalise) -> tuple[Float[Array, "*B I J D"], Statistics]:
        """Compute the features.

        Raises:
          ValueError: other maps than the head is made for.
        """
        cfg = self.cfg
        check_maps(maps, cfg.channels)
        new: Statistics = {}

        def layer(name: str, x: Array) -> Array:
            y, new[name] = getattr(self, name)(x, by)
            return jax.nn.relu(y)

        finest, coarsest = _size(maps[0]), _size(maps[-1])
        pooled = [
            _resized(layer(f"pool{i}", resample(maps[-1], (pool, pool), kernel=adaptive_mean)), coarsest)
            for i, pool in enumerate(cfg.pools)
        ]
        levels = [layer(f"lateral{i}", x) for i, x in enumerate(maps[:-1])]
        levels.append(layer("bottleneck", jnp.concatenate([maps[-1], *pooled], axis=-1)))
        for i in reversed(range(len(levels) - 1)):
            levels[i] = levels[i] + _resized(levels[i + 1], _size(levels[i]))
        smooth = [*(layer(f"smooth{i}", x) for i, x in enumerate(levels[:-1])), levels[-1]]
        return layer("fuse", jnp.concatenate([_resized(x, finest) for x in smooth], axis=-1)), new


@frozen
class ConvHeadConfig(OfMaps):
    """Convolutions of one feature map."""

    channels: int
    """C, of the map."""
    outputs: int
    """E, the classes that are scored."""
    level: int = 2
    """Which map it is, from 0, the finest."""
    embed: int = 256
    """D, the width of what comes."""
    depth: int = 1
    """Convolutions of 3×3 one after another."""
    concat: bool = False
    """Whether one more has the map itself beside what they give."""
    init_std: float | None = None
    """Standard deviation kernels start with; None: He's."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "channels", "outputs", "embed")
        check_at_least(self, 0, "level", "depth", "init_std")
        if not self.depth and self.embed != self.channels:
            raise ValueError(f"without convolutions a map keeps its width, got C={self.channels}, D={self.embed}")

    def build(self, rngs: nnx.Rngs) -> "ConvHead":
        """Make the head."""
        return ConvHead(self, rngs=rngs)


class ConvHead(Module):
    """Features [*B, I, J, D] as fine as the map; `output` scores classes by them."""

    def __init__(self, cfg: ConvHeadConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        make = partial(_conv_norm, cfg, rngs=rngs)
        for i in range(cfg.depth):
            setattr(self, f"conv{i}", make(cfg.embed if i else cfg.channels, cfg.embed, 3))
        if cfg.concat:
            self.fuse = make(cfg.channels + cfg.embed, cfg.embed, 3)
        self.output = Linear(cfg.embed, cfg.outputs, rngs=rngs, **cfg.precision.dtypes)

    def __call__(self, maps: Maps, by: Normalise) -> tuple[Float[Array, "*B I J D"], Statistics]:
        """Compute the features of one of the maps."""
        cfg, new = self.cfg, {}
        x = maps[cfg.level]
        for i in range(cfg.depth):
            x, new[f"conv{i}"] = getattr(self, f"conv{i}")(x, by)
            x = jax.nn.relu(x)
        if cfg.concat:
            x, new["fuse"] = self.fuse(jnp.concatenate([maps[cfg.level], x], axis=-1), by)
            x = jax.nn.relu(x)
        return x, new


@frozen
class MLPHeadConfig(OfMaps):
    """A linear layer on each feature map, and one on all of them side by side, as fine as the finest."""

    channels: tuple[int, ...]
    """C of each map, the finest first."""
    outputs: int
    """E, the classes that are scored."""
    embed: int = 256
    """D, the width of all levels and of what comes."""
    init_std: float | None = None
    """Standard deviation kernels start with; None: Xavier's, and He's before a batch norm."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        self.check_channels()

    def build(self, rngs: nnx.Rngs) -> "MLPHead":
        """Make the head."""
        return MLPHead(self, rngs=rngs)


class MLPHead(Module):
    """Features [*B, I, J, D] as fine as the finest map; `output` scores classes by them."""

    def __init__(self, cfg: MLPHeadConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        kinds = {"kernel_init": initializer(cfg), "rngs": rngs, **cfg.precision.dtypes}
        for i, channels in enumerate(cfg.channels):
            setattr(self, f"lateral{i}", Linear(channels, cfg.embed, **kinds))
        self.fuse = _conv_norm(cfg, len(cfg.channels) * cfg.embed, cfg.embed, 1, rngs=rngs)
        self.output = Linear(cfg.embed, cfg.outputs, **kinds)

    def __call__(self, maps: Maps, by: Normalise) -> tuple[Float[Array, "*B I J D"], Statistics]:
        """Compute the features.

        Raises:
          ValueError: other maps than the head is made for.
        """
        check_maps(maps, self.cfg.channels)
        levels = [_resized(getattr(self, f"lateral{i}")(x), _size(maps[0])) for i, x in enumerate(maps)]
        x, statistics = self.fuse(jnp.concatenate(levels[::-1], axis=-1), by)
        return jax.nn.relu(x), {"fuse": statistics}


@frozen
class FourSizesConfig:
    """What makes a pyramid of four equally fine feature maps, as BEiT's are (Bao et al. 2021, appendix)."""

    embed: int
    """C, of the maps that come in and go out."""
    init_std: float | None = None
    """Standard deviation kernels start with; None: He's."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "embed")
        check_at_least(self, 0, "init_std")

    def build(self, rngs: nnx.Rngs) -> "FourSizes":
        """Make it."""
        return FourSizes(self, rngs=rngs)


class FourSizes(Module):
    """Four maps of one size, made four times and twice as fine, left as they are, and made half as fine."""

    def __init__(self, cfg: FourSizesConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        up = UpConvConfig(
            channels=cfg.embed, features=cfg.embed, init_std=cfg.init_std, precision=cfg.precision
        )  # fmt: skip
        self.quadruple_conv1, self.quadruple_conv2, self.double_conv = (up.build(rngs) for _ in range(3))
        self.quadruple_norm = BatchNorm(cfg.embed)

    def __call__(self, maps: Maps, by: Normalise) -> tuple[tuple[Float[Array, "..."], ...], Statistics]:
        """Make the pyramid.

        Raises:
          ValueError: other maps than four.
        """
        check_maps(maps, (self.cfg.embed,) * 4)
        one, two, three, four = maps
        x, statistics = by(self.quadruple_norm, self.quadruple_conv1(one))
        x = self.quadruple_conv2(gelu(x))
        return (x, self.double_conv(two), three, max_pool(four, 2, stride=2)), {"quadruple_norm": statistics}


def check_maps(maps: Maps, channels: tuple[int, ...]) -> None:
    """Raise ValueError where feature maps are not as many, or of other channels."""
    if tuple(x.shape[-1] for x in maps) != channels:
        raise ValueError(
            f"feature maps must have {', '.join(map(str, channels))} channels, got shapes "
            f"{', '.join(str(x.shape) for x in maps)}"
        )


def _conv_norm(cfg: Any, channels: int, features: int, window: int, *, rngs: nnx.Rngs) -> ConvNorm:
    convolution = ConvConfig(
        channels=channels, features=features, window=(window, window), padding=window // 2, bias=False,
        init_std=cfg.init_std, precision=cfg.precision,
    )  # fmt: skip
    return ConvNorm(convolution, BatchNorm(features), rngs=rngs)


def _size(x: Array) -> tuple[int, int]:
    return x.shape[-3:-1]


def _resized(x: Array, size: tuple[int, int]) -> Array:
    return resample(x, size, kernel=bilinear)
