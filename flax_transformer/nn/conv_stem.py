"""Images as sequences: convolutions, each of which halves an image, in place of a layer over patches (Hassani et al.
2021, https://arxiv.org/abs/2104.05704; Xiao et al. 2021, https://arxiv.org/abs/2106.14881).

Axes: B batch, H W height and width in pixels, C channels, P places of the last feature map, D width.
"""

import math

import jax
from flax import nnx
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.nn.check import check_images
from flax_transformer.nn.config import Precision, check_at_least, check_fields
from flax_transformer.nn.conv import ConvConfig
from flax_transformer.nn.module import Module
from flax_transformer.ops.convolution import max_pool
from flax_transformer.parallel import constrain


@frozen
class StemConfig:
    """Convolutions of 3×3, each with ReLU, that make an image half as high and wide.

    Kernels begin as He's by what they take, so that images come out as strong as they went in.
    """

    embed: int
    """D, the width of the residual stream and of the last convolution."""
    image: tuple[int, int]
    """Height and width of the images that the model is made for, in pixels."""
    inner: tuple[int, ...] = ()
    """Widths of the convolutions before the last."""
    channels: int = 3
    """C."""
    pool: bool = True
    """Whether images are halved by the largest value of 3×3, as in CCT, or by convolutions of stride 2."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "embed", "channels")
        if min(self.inner, default=1) < 1:
            raise ValueError(f"inner must be widths of at least 1, got {self.inner}")
        self.grid_of(*self.image)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the last feature map."""
        return self.grid_of(*self.image)

    @property
    def patch(self) -> tuple[int, int]:
        """Height and width in pixels of what a place stands for."""
        return (2 ** (len(self.inner) + 1),) * 2

    def grid_of(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns that an image becomes.

        Raises:
          ValueError: for an image without pixels.
        """
        if min(height, width) < 1:
            raise ValueError(f"an image must have pixels, got {height}×{width}")
        for _ in range(len(self.inner) + 1):
            height, width = -(-height // 2), -(-width // 2)
        return height, width

    def build(self, rngs: nnx.Rngs) -> "Stem":
        """Make the layers."""
        return Stem(self, rngs=rngs)


class Stem(Module):
    """Images in, a row of vectors out, line by line."""

    def __init__(self, cfg: StemConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        widths = (cfg.channels, *cfg.inner, cfg.embed)
        for i in range(len(widths) - 1):
            layer = ConvConfig(
                channels=widths[i], features=widths[i + 1], window=(3, 3), stride=1 if cfg.pool else 2, padding=1,
                bias=False, init_std=math.sqrt(2 / (9 * widths[i])), precision=cfg.precision,
            ).build(rngs)  # fmt: skip
            setattr(self, f"conv{i + 1}", layer)

    def __call__(self, images: Float[Array, "*B H W C"]) -> Float[Array, "*B P D"]:
        """Embed images, of any size.

        Raises:
          ValueError: shapes that do not fit.
        """
        check_images(images, self.cfg.channels)
        x = images
        for i in range(len(self.cfg.inner) + 1):
            x = jax.nn.relu(getattr(self, f"conv{i + 1}")(x))
            x = max_pool(x, 3, stride=2, padding=1) if self.cfg.pool else x
        return constrain(x.reshape(*x.shape[:-3], -1, x.shape[-1]), "batch", "length", None)
