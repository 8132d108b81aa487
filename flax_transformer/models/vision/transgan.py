"""TransGAN: a generator and a discriminator of Transformer blocks alone, on grids that grow and shrink.

Source: Jiang et al. 2021 (https://arxiv.org/abs/2102.07074). Classes, which the paper has not, are embedded
beside the noise of the generator; the discriminator is told of them by a product (Miyato & Koyama 2018,
https://arxiv.org/abs/1802.05637).
Axes: B batch, H W height and width in pixels, C channels, P places of a grid, D width, Z width of the noise, E classes.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.vision.window_attention import WindowConfig
from flax_transformer.nn import (
    FeedForwardConfig,
    Grid,
    GridBlockConfig,
    PatchConfig,
    Precision,
    ResidualConfig,
    StemConfig,
    Trunk,
    TrunkConfig,
)
from flax_transformer.nn.adaptive import adaptive_block
from flax_transformer.nn.attention import AttentionConfig
from flax_transformer.nn.check import check_images
from flax_transformer.nn.config import check_at_least, check_fields
from flax_transformer.nn.linear import Linear
from flax_transformer.nn.module import Module
from flax_transformer.nn.table import make_table
from flax_transformer.ops.activation import silu
from flax_transformer.ops.pixel_shuffle import pixel_shuffle
from flax_transformer.order import Part
from flax_transformer.parallel import constrain

STAGES = tuple(f"stage{number}" for number in range(6))
POSITIONS = tuple(f"positions{number}" for number in range(6))
PATCHES = tuple(f"patches{number}" for number in range(6))
STYLES = tuple(f"style{number}" for number in range(6))


@frozen
class GridStages:
    """Stages of blocks on grids, each twice as high and wide as the next smaller one."""

    image: tuple[int, int] = (32, 32)
    """Height and width of images, in pixels."""
    channels: int = 3
    """C."""
    depths: tuple[int, ...] = (2, 2, 2)
    """Blocks of each stage."""
    heads: int = 4
    """Heads of every block."""
    cell: int = 8
    """Rows and columns of the cells that attention stays within (grid self-attention); grids that are no larger than
    one are seen as a whole."""
    classes: int = 1
    """Classes of the images."""
    conditional: bool = True
    """Whether images are made, or judged, as of a class."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "channels", "heads", "cell", "classes")
        if not 1 <= len(self.depths) <= len(STAGES) or min(self.depths) < 1:
            raise ValueError(f"there must be 1 to {len(STAGES)} stages of at least a block, got depths={self.depths}")

    def trunk(self, width: int, depth: int) -> TrunkConfig:
        """Return the blocks of a stage of some width.

        Raises:
          ValueError: heads that do not divide it.
        """
        if width % self.heads:
            raise ValueError(f"heads must divide the width of every stage, got D={width}, N={self.heads}")
        attention = AttentionConfig(embed=width, heads=self.heads, precision=self.precision)
        feedforward = FeedForwardConfig(embed=width, inner=4 * width, activation="gelu", precision=self.precision)
        block = GridBlockConfig(
            attention=WindowConfig(attention=attention, size=self.cell),
            feedforward=feedforward,
            residual=ResidualConfig(embed=width, norm_position="pre", precision=self.precision),
        )
        return TrunkConfig(block=block, depth=depth, unroll=True)

    def _divided(self, smallest: int) -> None:
        """Check that the image's sides are multiples of how many pixels a place of the smallest grid has."""
        if any(side % smallest for side in self.image):
            high, wide = self.image
            raise ValueError(
                f"height and width of images must be multiples of {smallest} for {len(self.depths)} stages, got "
                f"{high}×{wide}"
            )


@frozen
class TransGANGeneratorConfig(GridStages):
    """Noise, a small grid made of it, and stages after each of which four channels become a square of pixels."""

    embed: int = 256
    """D of the first stage; each has a quarter of the width of the one before."""
    noise: int = 64
    """Z."""
    patch: int = 1
    """Height and width in pixels of what a place of the last stage becomes."""
    modulated: bool = False
    """Whether noise and class modulate every residual too (adaLN-Zero), by a mapping of their own."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "embed", "noise", "patch")
        steps = len(self.depths) - 1
        if self.embed % 4**steps:
            raise ValueError(f"embed must be a multiple of 4 for each stage but one, got D={self.embed}, {steps}")
        self._divided(self.patch * 2**steps)
        self.stages  # noqa: B018, which refuses heads

    @property
    def grid(self) -> Grid:
        """Rows and columns of the first stage."""
        return Grid(*(side // (self.patch * 2 ** (len(self.depths) - 1)) for side in self.image))

    @property
    def stages(self) -> tuple[TrunkConfig, ...]:
        """The blocks of every stage."""
        plain = tuple(self.trunk(self.embed // 4**i, depth) for i, depth in enumerate(self.depths))
        if not self.modulated:
            return plain
        return tuple(replace(each, block=adaptive_block(each.block)) for each in plain)

    def build(self, rngs: nnx.Rngs) -> "TransGANGenerator":
        """Make the generator."""
        return TransGANGenerator(self, rngs=rngs)


class TransGANGenerator(Module):
    """Noise and classes in, images with values between -1 and 1 out."""

    layer_order = ("classes", "mapping", "project", *POSITIONS, *STYLES, *(Part(name) for name in STAGES), "head")

    def __init__(self, cfg: TransGANGeneratorConfig, *, rngs: nnx.Rngs):
        self.cfg, kinds = cfg, cfg.precision.dtypes
        rows, columns = cfg.grid
        if cfg.conditional:
            self.classes = make_table(rngs, cfg.classes, cfg.noise, cfg.precision, std=1.0)
        width = (2 if cfg.conditional else 1) * cfg.noise
        if cfg.modulated:
            self.mapping = Linear(width, cfg.noise, rngs=rngs, **kinds)
        self.project = Linear(width, rows * columns * cfg.embed, rngs=rngs, **kinds)
        for number, stage in enumerate(cfg.stages):
            places = rows * columns * 4**number
            if cfg.modulated:
                setattr(self, f"style{number}", Linear(cfg.noise, stage.block.embed, rngs=rngs, **kinds))
            setattr(self, f"positions{number}", make_table(rngs, places, stage.block.embed, cfg.precision))
            setattr(self, f"stage{number}", Trunk(stage, rngs=rngs))
        self.head = Linear(cfg.stages[-1].block.embed, cfg.channels * cfg.patch**2, rngs=rngs, **kinds)

    def noise(self, key: PRNGKeyArray, rows: int | Int[Array, "B"]) -> Float[Array, "B Z"]:
        """Draw noise of so many rows, or of those of some numbers; row i depends on the key and i alone."""
        numbers = jnp.arange(rows) if isinstance(rows, int) else rows
        return jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(key, i), (self.cfg.noise,)))(numbers)

    def __call__(self, noise: Float[Array, "B Z"], labels: Int[Array, "B"] | None = None) -> Float[Array, "B H W C"]:
        """Make images.

        Args:
          labels: the numbers of their classes, which a generator that is not conditional does not look at.

        Raises:
          ValueError: none for one that is.
        """
        cfg, grid = self.cfg, self.cfg.grid
        if cfg.conditional:
            if labels is None:
                raise ValueError("a conditional generator must be told the classes, got none")
            noise = jnp.concatenate([noise, self.classes[...][labels].astype(noise.dtype)], axis=-1)
        mapped = silu(self.mapping(noise)) if cfg.modulated else None
        x = self.project(noise).reshape(len(noise), -1, cfg.embed)
        for number in range(len(cfg.depths)):
            if number:
                x = pixel_shuffle(x.reshape(len(x), *grid, x.shape[-1]), 2)
                grid = Grid(*x.shape[1:3])
                x = x.reshape(len(x), -1, x.shape[-1])
            x = constrain(x + getattr(self, f"positions{number}")[...].astype(x.dtype), "batch", "length", None)
            extra = {"condition": getattr(self, f"style{number}")(mapped)} if cfg.modulated else {}
            x = getattr(self, f"stage{number}")(x, grid=grid, **extra)
        pixels = jnp.tanh(self.head(x).astype(jnp.float32)).reshape(len(x), *grid, -1)
        return pixel_shuffle(pixels, cfg.patch)


@frozen
class TransGANDiscriminatorConfig(GridStages):
    """Stages on ever smaller grids; each but the first sees what the one before says of four places, and patches twice
    as high and wide beside it.
    """

    embed: int = 48
    """D of the first stage; each is as wide as the one before and its own patches together, twice as wide."""
    patch: int = 2
    """Height and width of the first stage's patches."""
    stem: tuple[int, ...] = ()
    """Widths of convolutions before a last one that make the first stage's patches, each half as high and wide as it is
    given (CCT); none: a linear layer makes them."""
    depths: tuple[int, ...] = (1, 1, 1)
    """Blocks of each stage."""
    auxiliary: bool = False
    """Whether it says too of which class an image is, and whether that is a real one (ADC-GAN, Hou et al. 2022,
    https://arxiv.org/abs/2107.10060)."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "embed", "patch")
        self._divided(self.patch * 2 ** (len(self.depths) - 1))
        self.stages  # noqa: B018, which refuses heads
        if self.stem and 2 ** (len(self.stem) + 1) != self.patch:
            raise ValueError(
                f"a stem of {len(self.stem) + 1} convolutions makes patches of {2 ** (len(self.stem) + 1)} pixels, got "
                f"patch={self.patch}"
            )

    @property
    def stages(self) -> tuple[TrunkConfig, ...]:
        """The blocks of every stage."""
        return tuple(self.trunk(self.embed * 2**i, depth) for i, depth in enumerate(self.depths))

    @property
    def patches(self) -> tuple[PatchConfig | StemConfig, ...]:
        """Every stage's patches, which are as wide as what they lie beside."""
        like = partial(PatchConfig, image=self.image, channels=self.channels, precision=self.precision)
        widths = (self.embed * max(2 ** (i - 1), 1) if i else self.embed for i in range(len(self.depths)))
        plain = tuple(like(embed=width, patch=(self.patch * 2**i,) * 2) for i, width in enumerate(widths))
        if not self.stem:
            return plain
        first = StemConfig(
            embed=self.embed, image=self.image, inner=self.stem, channels=self.channels, pool=False,
            precision=self.precision,
        )  # fmt: skip
        return first, *plain[1:]

    def build(self, rngs: nnx.Rngs) -> "TransGANDiscriminator":
        """Make the discriminator."""
        return TransGANDiscriminator(self, rngs=rngs)


class TransGANDiscriminator(Module):
    """Images and classes in, a number each out: the greater, the more real."""

    layer_order = (*PATCHES, *POSITIONS, *(Part(name) for name in STAGES), "classes", "head", "auxiliary_head")

    def __init__(self, cfg: TransGANDiscriminatorConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        for number, (patches, stage) in enumerate(zip(cfg.patches, cfg.stages, strict=True)):
            places = math.prod(patches.grid)
            setattr(self, f"patches{number}", patches.build(rngs))
            setattr(self, f"positions{number}", make_table(rngs, places, stage.block.embed, cfg.precision))
            setattr(self, f"stage{number}", Trunk(stage, rngs=rngs))
        width = cfg.stages[-1].block.embed
        if cfg.conditional:
            self.classes = make_table(rngs, cfg.classes, width, cfg.precision)
        self.head = Linear(width, 1, rngs=rngs, **cfg.precision.dtypes)
        if cfg.auxiliary:
            self.auxiliary_head = Linear(width, 2 * cfg.classes, rngs=rngs, **cfg.precision.dtypes)

    def __call__(self, images: Float[Array, "B H W C"], labels: Int[Array, "B"] | None = None) -> Float[Array, "B"]:
        """Judge images; arguments and errors as those of `logits`."""
        return self.logits(images, labels)[0]

    def logits(
        self, images: Float[Array, "B H W C"], labels: Int[Array, "B"] | None = None
    ) -> tuple[Float[Array, "B"], Float[Array, "B 2E"] | None]:
        """Judge images, each by the mean of its places, and classify them as real or generated ones of every class.

        Args:
          labels: the numbers of their classes, which a discriminator that is not conditional does not look at.

        Returns:
          How real each is, and the logits of its being a real image of each class, then a generated one of each; None
          where the discriminator has no auxiliary classifier.

        Raises:
          ValueError: none for one that is; images of another size.
        """
        hidden = self._hidden(images)
        logits = self.head(hidden)[..., 0].astype(jnp.float32)
        if self.cfg.conditional:
            if labels is None:
                raise ValueError("a conditional discriminator must be told the classes, got none")
            logits = logits + jnp.sum(hidden.astype(jnp.float32) * self.classes[...][labels], axis=-1)
        return logits, self.auxiliary_head(hidden).astype(jnp.float32) if self.cfg.auxiliary else None

    def _hidden(self, images: Float[Array, "B H W C"]) -> Float[Array, "B D"]:
        """Return the mean of the last stage's places."""
        cfg = self.cfg
        check_images(images, cfg.channels)
        if images.shape[1:3] != cfg.image:
            (high, wide), found = cfg.image, images.shape[1:3]
            raise ValueError(f"images must have the discriminator's size, {high}×{wide}, got {found[0]}×{found[1]}")
        x = None
        for number, patches in enumerate(cfg.patches):
            seen = getattr(self, f"patches{number}")(images)
            x = seen if x is None else jnp.concatenate([_pooled(x, Grid(*cfg.patches[number - 1].grid)), seen], axis=-1)
            x = x + getattr(self, f"positions{number}")[...].astype(x.dtype)
            x = getattr(self, f"stage{number}")(x, grid=Grid(*patches.grid))
        return x.mean(axis=1)


def _pooled(x: Float[Array, "B P D"], grid: Grid) -> Float[Array, "B p D"]:
    """Average squares of two by two places."""
    rows, columns = grid
    x = x.reshape(len(x), rows // 2, 2, columns // 2, 2, x.shape[-1])
    return x.mean(axis=(2, 4)).reshape(len(x), -1, x.shape[-1])


def check_generator(model: Any) -> TransGANGenerator:
    """Return what makes images of noise in a trained model.

    Raises:
      ValueError: nothing does, as where a discriminator is given alone.
    """
    found = getattr(model, "generator", model)
    if not isinstance(found, TransGANGenerator):
        raise ValueError(f"images are made of noise by a TransGANGenerator, got {type(found).__name__}")
    return found
