"""Images as sequences: equal patches, each one vector (Dosovitskiy et al. 2020, https://arxiv.org/abs/2010.11929).

Axes: B batch, H W height and width in pixels, C channels, P patches, D width.
"""

from flax import nnx
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.nn.check import check_images
from flax_transformer.nn.config import Precision, check_at_least, check_fields
from flax_transformer.nn.linear import LinearGeneral, Product, initializer
from flax_transformer.nn.module import Module
from flax_transformer.parallel import constrain


@frozen
class PatchConfig:
    """A linear layer over every patch of an image."""

    embed: int
    """D, the width of the residual stream."""
    image: tuple[int, int]
    """Height and width of the images that the model is made for, in pixels."""
    patch: tuple[int, int]
    """Height and width of a patch."""
    channels: int = 3
    """C."""
    bias: bool = True
    """Whether the projection of a patch adds one."""
    init_std: float | None = None
    """Standard deviation the kernel starts with; None: Xavier's."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "embed", "channels")
        check_at_least(self, 0, "init_std")
        _ = self.grid  # which refuses sizes that hold no patch

    @property
    def grid(self) -> tuple[int, ...]:
        """Rows and columns of patches."""
        return self.grid_of(*self.image)

    def grid_of(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of patches of an image; what is left at its right and lower edge is not seen.

        Raises:
          ValueError: for an image smaller than a patch.
        """
        if min(self.patch) < 1 or height < self.patch[0] or width < self.patch[1]:
            raise ValueError(f"an image must hold a patch of {_size(self.patch)} pixels, got {height}×{width}")
        return height // self.patch[0], width // self.patch[1]

    def build(self, rngs: nnx.Rngs) -> "Patches":
        """Make the layer."""
        return Patches(self, rngs=rngs)


class Patches(Module):
    """Images in, a row of vectors out, line by line."""

    def __init__(self, cfg: PatchConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.patch = LinearGeneral(
            (*cfg.patch, cfg.channels), cfg.embed, axis=(-3, -2, -1), use_bias=cfg.bias, kernel_init=initializer(cfg),
            dot_general=Product("patch"), rngs=rngs, **cfg.precision.dtypes,
        )  # fmt: skip

    def __call__(self, images: Float[Array, "*B H W C"]) -> Float[Array, "*B P D"]:
        """Embed the patches of images, of any size.

        Raises:
          ValueError: shapes that do not fit.
        """
        check_images(images, self.cfg.channels)
        (high, wide), (rows, columns) = self.cfg.patch, self.cfg.grid_of(*images.shape[-3:-1])
        lead, C = images.shape[:-3], images.shape[-1]
        x = images[..., : rows * high, : columns * wide, :].reshape(*lead, rows, high, columns, wide, C)
        x = x.swapaxes(-4, -3).reshape(*lead, rows * columns, high, wide, C)
        return constrain(self.patch(x), "batch", "length", None)


def _size(pair: tuple[int, int]) -> str:
    return "×".join(map(str, pair))
