"""Diffusion Transformers: noisy images in, what is to be predicted of them out (Peebles & Xie 2022,
https://arxiv.org/abs/2212.09748), conditioned on time and class by adaLN-Zero.

Images may be pixels, or latents of an autoencoder (`autoencoder_kl`), which is not part of it.

Axes: B batch, H W height and width, C channels, P patches, D width, E classes.
"""

import math
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import ReadsImages
from flax_transformer.models.protocol import Described
from flax_transformer.models.restore import from_patches
from flax_transformer.nn import PatchConfig, Precision, Trunk, TrunkConfig, transformer_block
from flax_transformer.nn.adaptive import AdaptiveResidualConfig, adaptive_block, modulate, zero_linear
from flax_transformer.nn.check import check_widths
from flax_transformer.nn.config import check_at_least
from flax_transformer.nn.linear import Linear
from flax_transformer.nn.module import Module
from flax_transformer.ops import lookup, sinusoidal_grid, widen
from flax_transformer.ops.activation import silu
from flax_transformer.ops.diffusion import time_waves
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part
from flax_transformer.parallel import constrain

FLOAT32 = Precision()


@frozen
class DiTConfig(TrunkConfig):
    """A trunk over patches whose residuals a condition modulates, made of a time and a class."""

    patches: PatchConfig
    """How images are cut into patches and embedded; both sides are equal, and multiples of the patch's."""
    classes: int = 1000
    """E, classes that images are of; one more stands for none. 0: the model knows no classes."""
    learned_sigma: bool = False
    """Whether a variance is predicted beside, in C more channels, as the published models do."""
    waves: int = 256
    """Cosines and sines that times are encoded in."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 0, "classes")
        check_at_least(self, 4, "waves")
        check_widths(patches=self.patches.embed, block=self.block.embed)
        size, patch = self.patches.image, self.patches.patch
        if any(side % part for side, part in zip(size, patch, strict=True)) or len({*size}) > 1 or len({*patch}) > 1:
            raise ValueError(
                f"images must be squares that patches divide, got {_size(size)} pixels in patches of {_size(patch)}"
            )
        if not isinstance(self.block.residual, AdaptiveResidualConfig):
            raise ValueError(
                f"blocks must have residuals that a condition modulates (`adaptive_block` makes them), got "
                f"{type(self.block.residual).__name__}"
            )
        if self.cross:
            raise ValueError("a diffusion Transformer attends to no memory, got a block with cross-attention")

    @property
    def null(self) -> int:
        """The class that stands for none."""
        return self.classes

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of an image."""
        return (*self.patches.image, self.patches.channels)

    def build(self, rngs: nnx.Rngs) -> "DiT":
        """Make the model."""
        return DiT(self, rngs=rngs)


def _size(pair: tuple[int, int]) -> str:
    return "×".join(map(str, pair))


class DiT(ReadsImages, Module):
    """`model(images, times, classes)` is what is predicted of noisy images: noise, a velocity, or the images."""

    layer_order = ("patches", "time_in", "time_out", "class_table", Part("trunk"), "modulation", "head")
    use: ClassVar[str] = "image-generation"

    @classmethod
    def example_batch(cls, config: DiTConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B images, each at a time and of a class."""
        batch, draw = super().example_batch(config, rows), np.random.default_rng(1)
        labels = draw.integers(0, max(config.classes, 1), rows).astype(np.int32)
        inputs = {**batch["inputs"], "times": (1000 * draw.random(rows)).astype(np.float32)}
        inputs |= {"classes": labels} if config.classes else {}
        return {"inputs": inputs, "labels": labels, "weights": np.ones(rows, np.float32)}

    @classmethod
    def describe_batch(cls, config: DiTConfig, batch: dict[str, Any]) -> Described:
        """Count B images."""
        return super().describe_batch(config, batch)

    def __init__(self, cfg: DiTConfig, *, rngs: nnx.Rngs):
        embed, precision = cfg.block.embed, cfg.patches.precision
        kinds, small = precision.dtypes, nnx.initializers.normal(0.02)
        self.cfg = cfg
        self.patches = cfg.patches.build(rngs)
        self.time_in = Linear(cfg.waves, embed, kernel_init=small, axes=(None, "embed"), rngs=rngs, **kinds)
        self.time_out = Linear(embed, embed, kernel_init=small, rngs=rngs, **kinds)
        if cfg.classes:
            table = small(rngs.params(), (cfg.classes + 1, embed), kinds["param_dtype"])
            self.class_table = nnx.Param(table, out_sharding=(None, "embed"), eager_sharding=False)
        self.trunk = Trunk(cfg, rngs=rngs)
        self.modulation = zero_linear(embed, 2 * embed, precision, rngs)
        channels = cfg.patches.channels * (2 if cfg.learned_sigma else 1)
        self.head = zero_linear(embed, math.prod(cfg.patches.patch) * channels, precision, rngs)

    def condition(self, times: Float[Array, "*B"], classes: Int[Array, "*B"] | None = None) -> Float[Array, "*B D"]:
        """Embed times and classes, and add the two.

        Args:
          classes: a class, or `cfg.null`, a row; None is `cfg.null` for all.

        Raises:
          ValueError: classes for a model that knows none.
        """
        waves = time_waves(times, self.cfg.waves).astype(self.cfg.patches.precision.compute)
        found = widen(self.time_out(silu(self.time_in(waves))))
        if self.cfg.classes:
            classes = jnp.full(times.shape, self.cfg.null) if classes is None else classes
            found = found + widen(lookup(self.class_table[...], classes))
        elif classes is not None:
            raise ValueError("a model of images without classes is given none, got classes")
        return found.astype(self.cfg.patches.precision.residual)

    def hidden_states(
        self,
        images: Float[Array, "*B H W C"],
        times: Float[Array, "*B"],
        classes: Int[Array, "*B"] | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B P D"]:
        """Compute the hidden states of patches, the last of which are modulated too.

        Args:
          images: with noise.
          times: how much noise, in the terms of the process that the model is trained by: 0 … T − 1, or t · 1000.
          classes: as `condition`'s.
          key: for dropout; None means none.

        Raises:
          ValueError: images of another size, or classes for a model that knows none.
        """
        if images.shape[-3:] != self.cfg.shape:
            raise ValueError(f"images must be [*B, H, W, C] = {self.cfg.shape}, got shape {images.shape}")
        condition = self.condition(times, classes)
        x = widen(self.patches(images)) + sinusoidal_grid(*self.cfg.patches.grid, self.cfg.patches.embed)
        x = constrain(x.astype(self.cfg.patches.precision.residual), "batch", "length", None)
        x = self.trunk(x, condition=condition, key=split_keys(key)[0])
        shift, scale = jnp.split(self.modulation(silu(condition))[..., None, :], 2, axis=-1)
        return modulate(x, shift, scale)

    def output(self, hidden: Float[Array, "*B P D"], *, key: PRNGKeyArray | None = None) -> Float[Array, "*B H W _"]:
        """Return what is predicted of images, in C channels, and of a learned variance in C more."""
        return from_patches(self.head(hidden), self.cfg.patches.patch[0], channels_first=False)

    def __call__(
        self,
        images: Float[Array, "*B H W C"],
        times: Float[Array, "*B"],
        classes: Int[Array, "*B"] | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B H W _"]:
        """Predict; arguments and errors as those of `hidden_states`."""
        return self.output(self.hidden_states(images, times, classes, key=key))

    def predict(
        self, images: Float[Array, "*B H W C"], times: Float[Array, "*B"], classes: Int[Array, "*B"] | None = None
    ) -> Float[Array, "*B H W C"]:
        """Predict, in float32, without the variance."""
        return widen(self(images, times, classes))[..., : self.cfg.patches.channels]


def dit(
    embed: int, depth: int, heads: int, *, image: int, patch: int, channels: int,
    dropout: float = 0.0, precision: Precision = FLOAT32, **options: Any,
) -> DiTConfig:  # fmt: skip
    """Return a diffusion Transformer of any size, for square images.

    Args:
      options: other fields of `DiTConfig`, such as `classes` and `learned_sigma`.
    """
    plain = transformer_block(
        embed=embed, heads=heads, inner=4 * embed, norm_eps=1e-6, norm_position="pre", activation="gelu_tanh",
        out_bias=True, dropout=dropout, precision=precision,
    )  # fmt: skip
    patches = PatchConfig(
        embed=embed, image=(image, image), patch=(patch, patch), channels=channels, precision=precision
    )
    return DiTConfig(block=adaptive_block(plain), depth=depth, patches=patches, **options)


def _published(embed: int, depth: int, heads: int, patch: int, image: int, classes: int, **options: Any) -> DiTConfig:
    return dit(
        embed, depth, heads, image=image // 8, patch=patch, channels=4, classes=classes, learned_sigma=True, **options
    )


def dit_s_2(*, image: int = 256, classes: int = 1000, precision: Precision = FLOAT32) -> DiTConfig:
    """Return DiT-S/2: 33 M parameters; `image` is in pixels, of which latents have an eighth."""
    return _published(384, 12, 6, 2, image, classes, precision=precision)


def dit_b_2(*, image: int = 256, classes: int = 1000, precision: Precision = FLOAT32) -> DiTConfig:
    """Return DiT-B/2: 130 M parameters."""
    return _published(768, 12, 12, 2, image, classes, precision=precision)


def dit_l_2(*, image: int = 256, classes: int = 1000, precision: Precision = FLOAT32) -> DiTConfig:
    """Return DiT-L/2: 458 M parameters."""
    return _published(1024, 24, 16, 2, image, classes, precision=precision)


def dit_xl_2(*, image: int = 256, classes: int = 1000, precision: Precision = FLOAT32) -> DiTConfig:
    """Return DiT-XL/2: 675 M parameters."""
    return _published(1152, 28, 16, 2, image, classes, precision=precision)
