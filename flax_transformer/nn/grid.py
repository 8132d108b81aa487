"""Blocks whose attention knows that hidden states lie on a grid, as the patches of an image do.

Axes: B batch, T positions, D width.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.nn.check import check_hidden, check_widths
from flax_transformer.nn.config import check_fields
from flax_transformer.nn.feedforward import FeedForwardConfig
from flax_transformer.nn.module import Module
from flax_transformer.nn.residual import Residual, ResidualConfig


@jax.tree_util.register_static
class Grid(NamedTuple):
    """How many rows and columns of patches hidden states are; part of a program, not of what it computes with."""

    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.rows}×{self.columns}"


def check_grid(x: Float[Array, "*B T D"], grid: Grid, before: int = 0) -> None:
    """Raise ValueError unless the positions are those of the grid, and `before` more in front of them."""
    if x.shape[-2] != before + grid.rows * grid.columns:
        tokens = f"{before} and " if before else ""
        raise ValueError(f"T must be {tokens}the places of a grid of {grid}, got {x.shape[-2]}")


@frozen
class GridBlockConfig:
    """Attention on a grid and a feed-forward layer, a residual around each."""

    attention: Any
    """A config with `embed` (D) and `build(rngs)`, which makes a sublayer `f(x, *, grid, key=None)`: `WindowConfig`,
    `GridAttentionConfig`, `SpatialReductionConfig`."""
    feedforward: FeedForwardConfig
    """The feed-forward layer."""
    residual: ResidualConfig
    """Around each sublayer: norm, dropout, drop-path."""

    def __post_init__(self):
        check_fields(self)
        if missing := [name for name in ("embed", "build") if not hasattr(self.attention, name)]:
            kind = type(self.attention).__name__
            raise ValueError(f"attention must be a config of a sublayer, got {kind}, which has no {', '.join(missing)}")
        check_widths(attention=self.attention.embed, feedforward=self.feedforward.embed, residual=self.residual.embed)

    @property
    def embed(self) -> int:
        """D, the width of the residual stream."""
        return self.residual.embed

    def build(self, rngs: nnx.Rngs) -> "GridBlock":
        """Make the block."""
        return GridBlock(self, rngs=rngs)


class GridBlock(Module):
    """One layer of an encoder of images."""

    def __init__(self, cfg: GridBlockConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.attention = cfg.attention.build(rngs)
        self.attention_residual = Residual(cfg.residual, rngs=rngs)
        self.feedforward = cfg.feedforward.build(rngs)
        self.feedforward_residual = Residual(cfg.residual, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        *,
        grid: Grid,
        drop_path: Float[Array, ""] | float | None = None,
        key: PRNGKeyArray | None = None,
        **others: Any,
    ) -> Float[Array, "*B T D"]:
        """Apply the block.

        Args:
          grid: where the positions are.
          drop_path: how often a row does without a sublayer, in place of what the config says.
          key: for dropout; None means none.
          others: what else attention of this kind takes.

        Raises:
          ValueError: shapes that do not fit.
        """
        check_hidden(x, self.cfg.embed)
        keys = (None, None) if key is None else jax.random.split(key)
        x = checkpoint_name(x, "hidden_states")
        attend = partial(self.attention, grid=grid, **others)
        x = self.attention_residual(x, attend, key=keys[0], drop_path=drop_path)
        return self.feedforward_residual(x, self.feedforward, key=keys[1], drop_path=drop_path)
