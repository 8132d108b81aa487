"""Blocks whose attention knows that hidden states lie on a grid, as the patches of an image do.

Axes: B batch, T positions, D width.
"""

from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.nn.block import Sublayer, SublayersConfig
from flax_transformer.nn.feedforward import FeedForwardConfig
from flax_transformer.nn.residual import ResidualConfig


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
class GridBlockConfig(SublayersConfig):
    """Attention on a grid and a feed-forward layer, a residual around each."""

    attention: Any
    """A config whose layer is given the `grid`, as `Sublayer.layer` says: `WindowConfig`, `GridAttentionConfig`,
    `SpatialReductionConfig`."""
    feedforward: FeedForwardConfig
    """The feed-forward layer."""
    residual: ResidualConfig
    """Around each sublayer: norm, dropout, drop-path."""

    @property
    def sublayers(self) -> tuple[Sublayer, ...]:
        """In the order in which they are applied."""
        attention = Sublayer("attention", self.attention, self.residual)
        return attention, Sublayer("feedforward", self.feedforward, self.residual)
