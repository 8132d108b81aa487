"""Videos as sequences: equal tubelets, each one vector (Arnab et al. 2021, https://arxiv.org/abs/2103.15691).

Axes: B batch, I frames, H W height and width in pixels, C channels, P tubelets, D width.
"""

from einops import rearrange
from flax import nnx
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.nn.check import check_videos
from flax_transformer.nn.config import check_at_least
from flax_transformer.nn.linear import LinearGeneral, Product, initializer
from flax_transformer.nn.module import Module
from flax_transformer.nn.patch import PatchConfig
from flax_transformer.parallel import constrain


@frozen
class TubeletConfig(PatchConfig):
    """A linear layer over every tubelet of a video: the same patch of some frames that follow each other."""

    frames: int
    """I, frames of the videos that the model is made for."""
    span: int
    """Frames of a tubelet."""

    def __post_init__(self):
        check_at_least(self, 1, "frames", "span")
        super().__post_init__()

    @property
    def grid(self) -> tuple[int, int, int]:
        """Times, rows and columns of tubelets."""
        return self.grid_of(self.frames, *self.image)

    def grid_of(self, frames: int, height: int, width: int) -> tuple[int, int, int]:
        """Return the times, rows and columns of tubelets of a video; what is left at its end and edges is not seen.

        Raises:
          ValueError: for a video smaller than a tubelet.
        """
        if frames < self.span:
            raise ValueError(f"a video must hold a tubelet of {self.span} frames, got {frames}")
        return frames // self.span, *super().grid_of(height, width)

    def build(self, rngs: nnx.Rngs) -> "Tubelets":
        """Make the layer."""
        return Tubelets(self, rngs=rngs)


AXES = None, None, None, None, "embed"
"""The logical axes of the kernel."""


class Tubelets(Module):
    """Videos in, a row of vectors out: time by time, and of each time line by line."""

    def __init__(self, cfg: TubeletConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.tubelet = LinearGeneral(
            (cfg.span, *cfg.patch, cfg.channels), cfg.embed, axis=(-4, -3, -2, -1), use_bias=cfg.bias,
            axes=AXES, kernel_init=initializer(cfg), dot_general=Product(AXES), rngs=rngs, **cfg.precision.dtypes,
        )  # fmt: skip

    def __call__(self, videos: Float[Array, "*B I H W C"]) -> Float[Array, "*B P D"]:
        """Embed the tubelets of videos, of any size.

        Raises:
          ValueError: shapes that do not fit.
        """
        check_videos(videos, self.cfg.channels)
        (high, wide), span = self.cfg.patch, self.cfg.span
        times, rows, columns = self.cfg.grid_of(*videos.shape[-4:-1])
        x = rearrange(
            videos[..., : times * span, : rows * high, : columns * wide, :],
            "... (i t) (r h) (c w) C -> ... (i r c) t h w C", t=span, h=high, w=wide,
        )  # fmt: skip
        return constrain(self.tubelet(x), "batch", "length", None)
