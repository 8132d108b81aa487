"""Image-to-image translation by a Vision Transformer with a head of pixels, and a discriminator of patches.

Source: the losses and the discriminator of patches are those of pix2pix (Isola et al. 2017,
https://arxiv.org/abs/1611.07004) and CycleGAN (Zhu et al. 2017, https://arxiv.org/abs/1703.10593).
Axes: B batch, H W height and width of what comes in, rH rW of what goes out, C channels, P patches, F features of a
pixel.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import ReadsImages
from flax_transformer.models.vision.feature_discriminator import FeatureDiscriminatorConfig
from flax_transformer.models.vision.vit import ViTConfig
from flax_transformer.nn import PatchConfig, transformer_block
from flax_transformer.nn.check import check_images, check_widths
from flax_transformer.nn.config import Precision, check_at_least, check_fields
from flax_transformer.nn.conv import ConvConfig
from flax_transformer.nn.linear import Linear
from flax_transformer.nn.module import Module
from flax_transformer.ops.activation import gelu_tanh
from flax_transformer.ops.pixel_shuffle import pixel_shuffle
from flax_transformer.ops.resample import resample
from flax_transformer.order import Layer, Part


def _check_encoder(encoder: Any) -> None:
    """Check that every patch is hidden states, and every pixel in a patch.

    Raises:
      ValueError: tokens beside patches, or patches that leave pixels over.
    """
    patches = encoder.patches
    if encoder.tokens:
        raise ValueError(f"an encoder of which every patch becomes pixels has no tokens, got {encoder.tokens}")
    if any(side % patch for side, patch in zip(patches.image, patches.patch, strict=True)):
        raise ValueError(
            f"height and width of images must be multiples of the patch's, got {_size(patches.image)} and "
            f"{_size(patches.patch)}"
        )
    if patches.patch[0] != patches.patch[1]:
        raise ValueError(f"a patch that becomes pixels must be square, got {_size(patches.patch)}")


def _size(pair: tuple[int, int]) -> str:
    return "×".join(map(str, pair))


def as_output(images: Float[Array, "*B H W C"], channels: int, scale: int) -> Float[Array, "*B rH rW c"]:
    """Return images in another size and number of channels: resampled, grey repeated, colours averaged."""
    *_, H, W, C = images.shape
    x = images if scale == 1 else resample(images, (scale * H, scale * W))
    return x if channels == C else jnp.repeat(x.mean(axis=-1, keepdims=True), channels, axis=-1)


@frozen
class ImageToImageConfig:
    """An encoder of patches, pixels made of each, and convolutions that put them beside the image that came in."""

    encoder: ViTConfig
    """The encoder, without tokens; its patches say the size of the images that come in."""
    output_channels: int = 3
    """c, of the images that go out."""
    scale: int = 1
    """r, how many times higher and wider they are."""
    features: int = 16
    """F, what a patch says of each of its pixels."""
    mix: int = 32
    """Channels between the two convolutions at the end."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "output_channels", "scale", "features", "mix")
        _check_encoder(self.encoder)

    @property
    def channels(self) -> int:
        """C, of the images that come in."""
        return self.encoder.patches.channels

    @property
    def image(self) -> tuple[int, int]:
        """Height and width of the images that come in."""
        return self.encoder.patches.image

    def build(self, rngs: nnx.Rngs) -> "ImageToImage":
        """Make the model."""
        return ImageToImage(self, rngs=rngs)


class ImageToImage(ReadsImages, Module):
    """Images in, images out: what is added to the image that came in, resampled to the size of what goes out."""

    use = "image-to-image"
    layer_order = (Part("encoder"), "pixels", "mix", "head")

    @classmethod
    def example_batch(cls, config: ImageToImageConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B images, and as many that they are to become."""
        batch = super().example_batch(config.encoder, rows)
        images = jnp.asarray(batch["inputs"]["images"])
        labels = as_output(images, config.output_channels, config.scale)
        return {**batch, "labels": labels, "weights": jnp.ones(rows)}

    def __init__(self, cfg: ImageToImageConfig, *, rngs: nnx.Rngs):
        patches, kinds = cfg.encoder.patches, cfg.encoder.patches.precision
        self.cfg = cfg
        self.encoder = cfg.encoder.build(rngs)
        side = patches.patch[0] * cfg.scale
        self.pixels = Linear(patches.embed, cfg.features * side**2, rngs=rngs, **kinds.dtypes)
        conv = partial(ConvConfig, window=(3, 3), padding=1, precision=kinds)
        self.mix = conv(channels=cfg.features + cfg.output_channels, features=cfg.mix).build(rngs)
        self.head = conv(channels=cfg.mix, features=cfg.output_channels, init_std=0.01).build(rngs)
        # As few channels as images have are split over no devices.
        self.head.kernel.set_metadata(out_sharding=(None,) * 4, eager_sharding=False)

    def hidden_states(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B rH rW F"]:
        """Compute the features of every pixel of what goes out, after those of the image that came in.

        Args:
          key: for dropout; None means none.
        """
        cfg = self.cfg
        check_images(images, cfg.channels)
        (high, wide), side = images.shape[-3:-1], cfg.encoder.patches.patch[0]
        if high % side or wide % side:
            raise ValueError(f"height and width must be multiples of the patch's, got {high}×{wide} and {side}×{side}")
        x = self.pixels(self.encoder(images, key=key))
        x = x.reshape(*x.shape[:-2], high // side, wide // side, x.shape[-1])
        x = pixel_shuffle(x, side * cfg.scale)
        base = as_output(images, cfg.output_channels, cfg.scale).astype(x.dtype)
        return jnp.concatenate([base, x], axis=-1)

    def output(
        self, hidden: Float[Array, "*B rH rW F"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B rH rW c"]:
        """Return images of the features of their pixels."""
        base = hidden[..., : self.cfg.output_channels]
        return base + self.head(gelu_tanh(self.mix(hidden)))

    def __call__(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B rH rW c"]:
        """Translate images, whose sides must be multiples of a patch's."""
        return self.output(self.hidden_states(images, key=key))


@frozen
class PatchDiscriminatorConfig:
    """An encoder of patches, each of which is told real or generated."""

    encoder: ViTConfig
    """The encoder, without tokens; its patches say the size of the images that come into the generator."""
    output_channels: int = 3
    """c, of the images that are judged."""
    scale: int = 1
    """r, how many times higher and wider these are than those that the generator has seen."""
    conditional: bool = True
    """Whether the image that the generator has seen lies beside the one that is judged."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "output_channels", "scale")
        _check_encoder(self.encoder)

    @property
    def judging(self) -> ViTConfig:
        """The encoder of what is judged."""
        patches, scale = self.encoder.patches, self.scale
        seen = self.output_channels * (2 if self.conditional else 1)
        sides = tuple(scale * side for side in patches.image)
        return replace(self.encoder, patches=replace(patches, channels=seen, image=sides))

    def build(self, rngs: nnx.Rngs) -> "PatchDiscriminator":
        """Make the model."""
        return PatchDiscriminator(self, rngs=rngs)


class PatchDiscriminator(Module):
    """Images in, a number for each patch out: the greater, the more real."""

    layer_order = (Part("encoder"), "head")

    def __init__(self, cfg: PatchDiscriminatorConfig, *, rngs: nnx.Rngs):
        patches = cfg.encoder.patches
        self.cfg = cfg
        self.encoder = cfg.judging.build(rngs)
        self.head = Linear(patches.embed, 1, rngs=rngs, **patches.precision.dtypes)

    def __call__(
        self,
        images: Float[Array, "*B rH rW c"],
        seen: Float[Array, "*B H W C"] | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B P"]:
        """Judge images.

        Args:
          seen: the images that the generator has seen; given to a conditional discriminator alone.
          key: for dropout; None means none.

        Raises:
          ValueError: a conditional discriminator without them, or another one with them.
        """
        if (seen is not None) != self.cfg.conditional:
            raise ValueError(
                f"a discriminator is given what the generator has seen if it is conditional, got {seen is not None} "
                f"and conditional={self.cfg.conditional}"
            )
        if seen is not None:
            beside = as_output(seen, self.cfg.output_channels, self.cfg.scale)
            images = jnp.concatenate([images, beside.astype(images.dtype)], axis=-1)
        return self.head(self.encoder(images, key=key))[..., 0]


@frozen
class AdversarialConfig:
    """A generator, and the discriminator that it is trained against."""

    generator: Any
    """Config of the generator."""
    discriminator: Any
    """Config of the discriminator."""
    encoder: ViTConfig | None = None
    """An encoder whose hidden states the discriminator is given in place of images (`FeatureDiscriminator`). It is not
    trained here: it begins, and stays, with the parameters of a run (`--warm-start`)."""

    @property
    def untrained(self) -> tuple[str, ...]:
        """Parts that training leaves as they are, so that they must be another run's."""
        return () if self.encoder is None else ("encoder",)

    def __post_init__(self):
        judge = self.discriminator
        if isinstance(judge, FeatureDiscriminatorConfig) != (self.encoder is not None):
            raise ValueError(
                "the discriminator must be a FeatureDiscriminatorConfig if there is an encoder, and no other, got "
                f"{type(judge).__name__} and {'no' if self.encoder is None else 'an'} encoder"
            )
        if self.encoder is None:
            return
        check_widths(encoder=self.encoder.block.embed, discriminator=judge.embed)
        if judge.layers[-1] > self.encoder.depth:
            raise ValueError(f"the encoder must have the layers {judge.layers}, got one of {self.encoder.depth}")

    def build(self, rngs: nnx.Rngs) -> "Adversarial":
        """Make both."""
        return Adversarial(self, rngs=rngs)


class Adversarial(Module):
    """A generator, which is what is used when training is done, and its discriminator."""

    layer_order = (Part("generator", "discriminator", "encoder"),)

    def __init__(self, cfg: AdversarialConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.generator, self.discriminator = cfg.generator.build(rngs), cfg.discriminator.build(rngs)
        if cfg.encoder is not None:
            self.encoder = cfg.encoder.build(rngs)


@frozen
class BothWaysConfig:
    """Two of a model that are alike: one for the way to the targets, one for the way back."""

    model: Any
    """Config of each."""

    def build(self, rngs: nnx.Rngs) -> "BothWays":
        """Make both."""
        return BothWays(self, rngs=rngs)


class BothWays(Module):
    """A model of images on their way to the targets, and one of targets on their way back."""

    layer_order = (Layer("forward", "backward"),)

    def __init__(self, cfg: BothWaysConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.forward, self.backward = cfg.model.build(rngs), cfg.model.build(rngs)


def image_encoder(
    *, image: int, patch: int, embed: int, heads: int, depth: int, channels: int = 3,
    precision: Precision = Precision(), **options: Any,
) -> ViTConfig:  # fmt: skip
    """Return an encoder of every patch of an image, pre-norm, without tokens.

    Args:
      options: of the blocks, as `transformer_block` takes them.
    """
    usual = {"inner": 4 * embed, "activation": "gelu", "norm_position": "pre"}
    block = transformer_block(embed=embed, heads=heads, precision=precision, **{**usual, **options})
    patches = PatchConfig(
        embed=embed, image=(image, image), patch=(patch, patch), channels=channels, precision=precision
    )
    return ViTConfig(patches=patches, block=block, depth=depth, tokens=(), unroll=True)


def generator_of(model: Any, *, backward: bool = False) -> ImageToImage:
    """Return what translates images in a trained model: it, its generator, or of both ways one.

    Args:
      backward: whether it is the way back from the targets.

    Raises:
      ValueError: none of the model does, or not in this direction.
    """
    found = getattr(model, "generator", model)
    if backward and not isinstance(found, BothWays):
        raise ValueError(f"the way back is known to a model of both ways, got {type(found).__name__}")
    if isinstance(found, BothWays):
        found = found.backward if backward else found.forward
    if not isinstance(found, ImageToImage):
        raise ValueError(f"images are translated by an ImageToImage, got {type(found).__name__}")
    return found
