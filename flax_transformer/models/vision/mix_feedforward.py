"""A feed-forward layer with a convolution inside, by which positions are known without a table (Xie et al. 2021, §3.1,
https://arxiv.org/abs/2105.15203).

Axes: B batch, T positions on a grid, D width.
"""

from dataclasses import fields

from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.nn import ConvConfig
from flax_transformer.nn.check import check_hidden, check_single
from flax_transformer.nn.feedforward import FeedForward, FeedForwardConfig
from flax_transformer.nn.grid import Grid, check_grid


@frozen
class MixFeedForwardConfig(FeedForwardConfig):
    """A feed-forward layer with a depthwise convolution before its activation."""

    window: int = 3
    """Rows and columns that the convolution sees, an odd number."""

    takes = ("grid",)

    def __post_init__(self):
        super().__post_init__()
        if self.gated:
            raise ValueError("a feed-forward layer with a convolution inside is not gated, got gated=True")
        if self.window < 1 or self.window % 2 == 0:
            raise ValueError(f"the window must be an odd number of rows and columns, got {self.window}")

    @classmethod
    def like(cls, plain: FeedForwardConfig, **options: int) -> "MixFeedForwardConfig":
        """Return such a layer that is otherwise as a plain one."""
        return cls(**{each.name: getattr(plain, each.name) for each in fields(plain)}, **options)

    def build(self, rngs: nnx.Rngs) -> "MixFeedForward":
        """Make the layer."""
        return MixFeedForward(self, rngs=rngs)


class MixFeedForward(FeedForward):
    """Two linear layers with a depthwise convolution and an activation between."""

    def __init__(self, cfg: MixFeedForwardConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        self.convolution = ConvConfig(
            channels=cfg.inner, features=cfg.inner, window=(cfg.window, cfg.window), padding=cfg.window // 2,
            groups=cfg.inner, bias=cfg.bias, init_std=cfg.init_std, precision=cfg.precision,
        ).build(rngs)  # fmt: skip

    def __call__(
        self, x: Float[Array, "*B T D"], *, grid: Grid, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B T D"]:
        """Apply the layer.

        Args:
          grid: where the T positions are.
          key: for activation dropout; None means none.

        Raises:
          ValueError: shapes that do not fit.
        """
        check_hidden(x, self.cfg.embed)
        check_single(self.down.kernel, 2)
        check_grid(x, grid)
        hidden = self.up(x)
        hidden = self.convolution(hidden.reshape(*hidden.shape[:-2], *grid, -1)).reshape(hidden.shape)
        return self._rest((hidden,), key)
