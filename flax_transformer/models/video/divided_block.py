"""Attention divided into one over time and one over space, each a sublayer of its own (Bertasius et al. 2021,
https://arxiv.org/abs/2102.05095).

Hidden states are a token for the whole video, then every place of it through all of its frames: their `Grid` has a row
for each place and a column for each frame.

Axes: B batch, T the token and P·I others, P places, I frames, D width.
"""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.nn.attention import Attention, AttentionConfig
from flax_transformer.nn.block import Sublayer, SublayersConfig
from flax_transformer.nn.check import check_hidden
from flax_transformer.nn.feedforward import FeedForwardConfig
from flax_transformer.nn.grid import Grid, check_grid
from flax_transformer.nn.linear import Linear, Product, initializer
from flax_transformer.nn.residual import ResidualConfig
from flax_transformer.nn.transformer_block import TransformerBlockConfig


@frozen
class TimeAttentionConfig(AttentionConfig):
    """Attention of every place to itself in all frames, and a linear layer after it."""

    takes = ("grid",)

    def build(self, rngs: nnx.Rngs) -> "TimeAttention":
        """Make the layer."""
        return TimeAttention(self, rngs=rngs)


class TimeAttention(Attention):
    """Attention over the frames of each place; the token stays as it is."""

    def __init__(self, cfg: TimeAttentionConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        self.dense = Linear(
            cfg.embed, cfg.embed, kernel_init=initializer(cfg), dot_general=Product(), rngs=rngs,
            **cfg.precision.dtypes,
        )  # fmt: skip

    def __call__(
        self, x: Float[Array, "*B T D"], *, grid: Grid, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B T D"]:
        """Attend, and give 0 for the token.

        Args:
          grid: places and frames.
          key: for attention dropout; None means none.

        Raises:
          ValueError: shapes that do not fit.
        """
        check_hidden(x, self.cfg.embed)
        check_grid(x, grid, 1)
        y = super().__call__(x[..., 1:, :].reshape(*x.shape[:-2], *grid, x.shape[-1]), key=key)
        y = self.dense(y).reshape(*x.shape[:-2], -1, x.shape[-1])
        return jnp.concatenate([jnp.zeros_like(y[..., :1, :]), y], axis=-2)


@frozen
class SpaceAttentionConfig(AttentionConfig):
    """Attention of the places of every frame, and of the token, to each other."""

    takes = ("grid",)

    def build(self, rngs: nnx.Rngs) -> "SpaceAttention":
        """Make the layer."""
        return SpaceAttention(self, rngs=rngs)


class SpaceAttention(Attention):
    """Attention over the places of each frame; the token looks at every frame by itself, and has the mean of it."""

    def __call__(
        self, x: Float[Array, "*B T D"], *, grid: Grid, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B T D"]:
        """Attend; arguments and errors as `TimeAttention`'s."""
        check_hidden(x, self.cfg.embed)
        check_grid(x, grid, 1)
        lead, D = x.shape[:-2], x.shape[-1]
        token = jnp.broadcast_to(x[..., None, :1, :], (*lead, grid.columns, 1, D))
        patches = x[..., 1:, :].reshape(*lead, *grid, D).swapaxes(-3, -2)
        x = jnp.concatenate([token, patches], axis=-2)
        y = super().__call__(x, key=key)
        token, patches = y[..., 0, :].mean(axis=-2, keepdims=True), y[..., 1:, :].swapaxes(-3, -2)
        return jnp.concatenate([token, patches.reshape(*lead, -1, D)], axis=-2)


@frozen
class DividedBlockConfig(SublayersConfig):
    """A block of time attention, space attention and feed-forward; `divided_block` makes it of a plain one."""

    attention: SpaceAttentionConfig
    """Attention within a frame."""
    time: TimeAttentionConfig
    """Attention between frames, at the same position."""
    feedforward: FeedForwardConfig
    """The feed-forward layer."""
    residual: ResidualConfig
    """Around each sublayer."""

    @property
    def sublayers(self) -> tuple[Sublayer, ...]:
        """In the order in which they are applied."""
        names = "time", "attention", "feedforward"
        return tuple(Sublayer(name, getattr(self, name), self.residual) for name in names)

    def plain(self) -> TransformerBlockConfig:
        """Return the block whose attention is not divided."""
        attention = AttentionConfig.like(self.attention)
        return TransformerBlockConfig(attention=attention, feedforward=self.feedforward, residual=self.residual)


def divided_block(plain: TransformerBlockConfig) -> DividedBlockConfig:
    """Divide the attention of a block of self-attention and feed-forward."""
    space, time = SpaceAttentionConfig.like(plain.attention), TimeAttentionConfig.like(plain.attention)
    return DividedBlockConfig(attention=space, time=time, feedforward=plain.feedforward, residual=plain.residual)
