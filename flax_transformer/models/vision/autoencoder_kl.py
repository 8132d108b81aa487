"""Autoencoder of latent diffusion (Rombach et al. 2022, https://arxiv.org/abs/2112.10752): images in,
latents of an eighth of their sides out, and images of latents.

Axes: B batch, H W height and width, C channels, Z channels of latents, I J height and width of latents.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import ReadsImages
from flax_transformer.nn import ConvConfig, Precision
from flax_transformer.nn.attention import Attention, AttentionConfig
from flax_transformer.nn.check import check_images
from flax_transformer.nn.config import check_at_least, check_fields
from flax_transformer.nn.conv import Conv
from flax_transformer.nn.module import Module
from flax_transformer.nn.norm import GroupNorm
from flax_transformer.nn.stack import layer, stack_depth
from flax_transformer.ops.activation import silu
from flax_transformer.order import Layer, Order, Part, Stack

FLOAT32 = Precision()
EPSILON = 1e-6
"""Of all group norms."""
LEAST, MOST = -30.0, 20.0
"""Logarithms of variances are kept between these."""


@frozen
class AutoencoderKLConfig:
    """An encoder of stages that halve the sides of images, and a decoder of stages that double them."""

    image: tuple[int, int] = (256, 256)
    """Height and width of images in pixels that the model was trained on; others are taken too."""
    channels: int = 3
    """C, of the images."""
    latents: int = 4
    """Z, channels of latents."""
    widths: tuple[int, ...] = (128, 256, 512, 512)
    """Channels of each stage; each but the last halves the sides."""
    depth: int = 2
    """Residual blocks of a stage of the encoder; the decoder's have one more."""
    groups: int = 32
    """Groups of channels that norms normalise."""
    attention: bool = True
    """Whether there is attention among all positions between the encoder's stages and the decoder's."""
    mixed: bool = True
    """Whether a convolution of 1×1 is between encoder and latents, and one between latents and decoder."""
    scale: float = 0.18215
    """What latents are multiplied by, so that their variance is about 1."""
    shift: float = 0.0
    """What is subtracted from latents before."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed; norms compute in float32 or more."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "channels", "latents", "depth", "groups")
        if not self.widths or any(width % self.groups for width in self.widths):
            raise ValueError(f"widths must be multiples of the groups, got widths={self.widths}, groups={self.groups}")
        if not self.scale > 0:
            raise ValueError(f"scale must be above 0, got {self.scale}")
        if any(side % self.stride for side in self.image):
            raise ValueError(f"sides of images must be multiples of {self.stride}, got {self.image}")

    @property
    def stride(self) -> int:
        """Rows, and columns, of pixels for each of the latents."""
        return 2 ** (len(self.widths) - 1)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Sides and channels of latents."""
        height, width = self.image
        return height // self.stride, width // self.stride, self.latents

    def build(self, rngs: nnx.Rngs) -> "AutoencoderKL":
        """Make the model."""
        return AutoencoderKL(self, rngs=rngs)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gaussian:
    """Normal distributions, of every number its own: what an image is encoded as."""

    mean: Any
    """[*B, I, J, Z]."""
    log_variance: Any
    """[*B, I, J, Z]."""

    def sample(self, key: PRNGKeyArray) -> Float[Array, "*B I J Z"]:
        """Draw one of each."""
        return self.mean + jnp.exp(self.log_variance / 2) * jax.random.normal(key, self.mean.shape, self.mean.dtype)

    def divergence(self) -> Float[Array, "*B"]:
        """Compute the Kullback–Leibler divergence from the standard normal distribution, in nats."""
        each = jnp.square(self.mean) + jnp.exp(self.log_variance) - 1 - self.log_variance
        return each.sum((-3, -2, -1)) / 2


class AutoencoderKL(ReadsImages, Module):
    """`model.encode(images)` gives the distributions of latents, `model.decode(latents)` images."""

    layer_order: Order = (Part("encoder"), "encoded", "decoded", Part("decoder"))

    def __init__(self, cfg: AutoencoderKLConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.encoder = Encoder(cfg, rngs=rngs)
        if cfg.mixed:
            self.encoded = _whole(_conv(cfg, 2 * cfg.latents, 2 * cfg.latents, 1, rngs=rngs))
            self.decoded = _whole(_conv(cfg, cfg.latents, cfg.latents, 1, rngs=rngs))
        self.decoder = Decoder(cfg, rngs=rngs)

    def encode(self, images: Float[Array, "*B H W C"]) -> Gaussian:
        """Compute the distributions of latents, before they are scaled.

        Raises:
          ValueError: sides that are no multiples of the stride, or other channels.
        """
        check_images(images, self.cfg.channels)
        if any(side % self.cfg.stride for side in images.shape[-3:-1]):
            raise ValueError(
                f"sides of images must be multiples of {self.cfg.stride}, got {images.shape[-3]} × {images.shape[-2]}"
            )
        x = self.encoder(images)
        mean, log_variance = jnp.split(self.encoded(x) if self.cfg.mixed else x, 2, axis=-1)
        return Gaussian(mean, jnp.clip(log_variance, LEAST, MOST))

    def decode(self, latents: Float[Array, "*B I J Z"]) -> Float[Array, "*B H W C"]:
        """Compute images of latents that are not scaled, pixels about between −1 and 1.

        Raises:
          ValueError: other channels.
        """
        check_images(latents, self.cfg.latents)
        return self.decoder(self._decoded(latents))

    def scaled(self, latents: Float[Array, "*B I J Z"]) -> Float[Array, "*B I J Z"]:
        """Return latents as a diffusion model sees them."""
        return (latents - self.cfg.shift) * self.cfg.scale

    def unscaled(self, latents: Float[Array, "*B I J Z"]) -> Float[Array, "*B I J Z"]:
        """Return latents of a diffusion model as `decode` takes them."""
        return latents / self.cfg.scale + self.cfg.shift

    def __call__(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B H W C"]:
        """Restore images from the means of their latents; a key changes nothing, `encode(images).sample(key)` draws.

        Raises:
          ValueError: as `encode`.
        """
        return self.decode(self.encode(images).mean)

    def hidden_states(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B P D"]:
        """Compute what restored images are made from, a row of D numbers a pixel, line by line; as in a call."""
        x = self.decoder.features(self._decoded(self.encode(images).mean))
        return x.reshape(*x.shape[:-3], -1, x.shape[-1])

    def _decoded(self, latents: Array) -> Array:
        return self.decoded(latents) if self.cfg.mixed else latents


class Encoder(Module):
    """Stages that halve the sides, then positions see each other."""

    @property
    def layer_order(self) -> Order:
        """Its stages, on top of each other."""
        return "stem", *(Part(f"stage{i + 1}") for i in range(len(self.cfg.widths))), "middle", "norm", "last"

    def __init__(self, cfg: AutoencoderKLConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.stem = _conv(cfg, cfg.channels, cfg.widths[0], rngs=rngs)
        before = (cfg.widths[0], *cfg.widths)
        for i, width in enumerate(cfg.widths):
            halves = {"stride": 2, "padding": 0} if i < len(cfg.widths) - 1 else None
            setattr(self, f"stage{i + 1}", Stage(cfg, before[i], width, cfg.depth, resize=halves, rngs=rngs))
        self.middle = Middle(cfg, rngs=rngs)
        self.norm = _norm(cfg, cfg.widths[-1], rngs)
        self.last = _whole(_conv(cfg, cfg.widths[-1], 2 * cfg.latents, rngs=rngs))

    def __call__(self, x: Float[Array, "*B H W C"]) -> Float[Array, "*B I J _"]:
        """Compute means and logarithms of variances, before they are mixed."""
        x = self.stem(x)
        for i in range(len(self.cfg.widths)):
            stage = getattr(self, f"stage{i + 1}")
            x = stage(x)
            if hasattr(stage, "resize"):
                x = stage.resize(jnp.pad(x, (*[(0, 0)] * (x.ndim - 3), (0, 1), (0, 1), (0, 0))))
        return self.last(_activated(self.norm, self.middle(x)))


class Decoder(Module):
    """Positions see each other, then stages double the sides."""

    @property
    def layer_order(self) -> Order:
        """Its stages, on top of each other."""
        return "stem", "middle", *(Part(f"stage{i + 1}") for i in range(len(self.cfg.widths))), "norm", "last"

    def __init__(self, cfg: AutoencoderKLConfig, *, rngs: nnx.Rngs):
        self.cfg, widths = cfg, cfg.widths[::-1]
        self.stem = _conv(cfg, cfg.latents, widths[0], rngs=rngs)
        self.middle = Middle(cfg, rngs=rngs)
        before = (widths[0], *widths)
        for i, width in enumerate(widths):
            doubled = {} if i < len(widths) - 1 else None
            setattr(self, f"stage{i + 1}", Stage(cfg, before[i], width, cfg.depth + 1, resize=doubled, rngs=rngs))
        self.norm = _norm(cfg, widths[-1], rngs)
        self.last = _whole(_conv(cfg, widths[-1], cfg.channels, rngs=rngs))

    def __call__(self, x: Float[Array, "*B I J Z"]) -> Float[Array, "*B H W C"]:
        """Compute images."""
        return self.last(self.features(x))

    def features(self, x: Float[Array, "*B I J Z"]) -> Float[Array, "*B H W D"]:
        """Compute what images are made from, pixel by pixel and its neighbours."""
        x = self.middle(self.stem(x))
        for i in range(len(self.cfg.widths)):
            stage = getattr(self, f"stage{i + 1}")
            x = stage(x)
            if hasattr(stage, "resize"):
                x = stage.resize(x.repeat(2, axis=-3).repeat(2, axis=-2))
        return _activated(self.norm, x)


class ResidualBlock(Module):
    """Two convolutions behind norms, and what they are given added; one of 1×1 fits that where channels differ."""

    def __init__(self, cfg: AutoencoderKLConfig, channels: int, features: int, *, rngs: nnx.Rngs):
        self.norm1 = _norm(cfg, channels, rngs)
        self.conv1 = _conv(cfg, channels, features, rngs=rngs)
        self.norm2 = _norm(cfg, features, rngs)
        self.conv2 = _conv(cfg, features, features, rngs=rngs)
        if channels != features:
            self.shortcut = _conv(cfg, channels, features, 1, rngs=rngs)

    def __call__(self, x: Float[Array, "*B H W C"]) -> Float[Array, "*B H W D"]:
        """Apply the block."""
        y = self.conv2(_activated(self.norm2, self.conv1(_activated(self.norm1, x))))
        return (self.shortcut(x) if hasattr(self, "shortcut") else x) + y


class Stage(Module):
    """A block that changes the channels, a stack of equal ones, and the convolution by which the sides change, if any.

    Args:
      resize: stride and padding of that convolution, which is called apart; None: there is none.
    """

    layer_order = (Layer("first"), Stack("rest"), "resize")

    def __init__(
        self, cfg: AutoencoderKLConfig, channels: int, features: int, depth: int, *, resize: dict[str, int] | None,
        rngs: nnx.Rngs,
    ):  # fmt: skip
        self.first = ResidualBlock(cfg, channels, features, rngs=rngs)
        if depth > 1:

            def make(key):
                return ResidualBlock(cfg, features, features, rngs=nnx.Rngs(key))

            self.rest = jax.vmap(make)(jax.random.split(rngs.params(), depth - 1))
        if resize is not None:
            self.resize = _conv(cfg, features, features, **resize, rngs=rngs)

    def __call__(self, x: Float[Array, "*B H W C"]) -> Float[Array, "*B H W D"]:
        """Apply the blocks, one after another: there are too few for a loop."""
        x = self.first(checkpoint_name(x, "hidden_states"))
        for i in range(stack_depth(self.rest) if hasattr(self, "rest") else 0):
            x = layer(self.rest, i)(x)
        return x


class Middle(Module):
    """A block, attention of one head among all positions, and another block."""

    def __init__(self, cfg: AutoencoderKLConfig, *, rngs: nnx.Rngs):
        width = cfg.widths[-1]
        self.before = ResidualBlock(cfg, width, width, rngs=rngs)
        if cfg.attention:
            self.norm = _norm(cfg, width, rngs)
            self.attention = Attention(AttentionConfig(embed=width, heads=1, precision=cfg.precision), rngs=rngs)
        self.after = ResidualBlock(cfg, width, width, rngs=rngs)

    def __call__(self, x: Float[Array, "*B I J D"]) -> Float[Array, "*B I J D"]:
        """Apply the three."""
        x = self.before(x)
        if hasattr(self, "attention"):
            rows = self.norm(x).reshape(*x.shape[:-3], math.prod(x.shape[-3:-1]), x.shape[-1])
            x = x + self.attention(rows).reshape(x.shape)
        return self.after(x)


def _conv(
    cfg: AutoencoderKLConfig, channels: int, features: int, window: int = 3, *, stride: int = 1,
    padding: int | None = None, rngs: nnx.Rngs,
) -> Conv:  # fmt: skip
    padding = window // 2 if padding is None else padding
    return ConvConfig(
        channels=channels, features=features, window=(window, window), stride=stride, padding=padding,
        precision=cfg.precision,
    ).build(rngs)  # fmt: skip


def _whole(layer: Conv) -> Conv:
    """Return a convolution to a few channels, which no mesh splits."""
    layer.kernel.set_metadata(out_sharding=(None,) * 4, eager_sharding=False)
    return layer


def _norm(cfg: AutoencoderKLConfig, channels: int, rngs: nnx.Rngs) -> GroupNorm:
    return GroupNorm(channels, cfg.groups, epsilon=EPSILON, rngs=rngs, **cfg.precision.dtypes)


def _activated(norm: GroupNorm, x: Array) -> Array:
    return silu(norm(x))


def autoencoder_kl(image: int = 256, *, precision: Precision = FLOAT32) -> AutoencoderKLConfig:
    """Return the autoencoder of Stable Diffusion and of DiT's checkpoints: 83.7 M parameters."""
    return AutoencoderKLConfig(image=(image, image), precision=precision)
