"""Attention within windows of a grid, which every other layer shifts (Liu et al. 2021,
https://arxiv.org/abs/2103.14030).

Axes: B batch, T positions on the grid, R C its rows and columns, W windows, S positions in a window, D width, N heads.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from flax_transformer.frozen import frozen
from flax_transformer.nn.attention import AttentionConfig
from flax_transformer.nn.check import check_hidden
from flax_transformer.nn.config import check_at_least, check_fields
from flax_transformer.nn.grid import Grid, check_grid
from flax_transformer.nn.grid_bias import GridBiasConfig
from flax_transformer.nn.module import Module

APART = -100.0
"""What is added to the score of a key that lies beside its query only because the grid was shifted around its edge."""


@frozen
class WindowConfig:
    """Attention in square windows, with a bias for every distance in them."""

    attention: AttentionConfig
    """Attention within a window."""
    size: int
    """Rows and columns of a window. A grid that has no more of either is cut into windows as long as its shorter side,
    which nothing shifts."""
    filled: bool = False
    """Whether such a grid is filled up to a whole window instead, and shifted as any other."""

    takes = "grid", "shift"

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "size")

    @property
    def embed(self) -> int:
        """D, the width of the residual stream."""
        return self.attention.embed

    def build(self, rngs: nnx.Rngs) -> "WindowAttention":
        """Make the layer."""
        return WindowAttention(self, rngs=rngs)


class WindowAttention(Module):
    """Attention in windows of a grid."""

    def __init__(self, cfg: WindowConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.attention = cfg.attention.build(rngs)
        size, heads, precision = cfg.size, cfg.attention.heads, cfg.attention.precision
        self.relative = GridBiasConfig(grid=(size, size), heads=heads, precision=precision).build(rngs)

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        *,
        grid: Grid,
        shift: Int[Array, ""] | int = 0,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Attend in every window; the grid is filled up with zeros to whole windows.

        Args:
          grid: where the T positions are.
          shift: how many rows and columns windows begin further down and to the right.
          key: for attention dropout; None means none.

        Raises:
          ValueError: shapes that do not fit.
        """
        check_hidden(x, self.cfg.embed)
        check_grid(x, grid)
        *lead, _, D = x.shape
        size, fixed = min(self.cfg.size, *grid), min(grid) <= self.cfg.size
        size, fixed = (self.cfg.size, False) if self.cfg.filled else (size, fixed)
        whole = Grid(*(side + -side % size for side in grid))
        x = x.reshape(*lead, *grid, D)
        x = jnp.pad(x, [(0, 0)] * len(lead) + [(0, new - old) for new, old in zip(whole, grid, strict=True)] + [(0, 0)])
        x = split_windows(x if fixed else jnp.roll(x, (-shift, -shift), (-3, -2)), size)
        bias = self.relative(Grid(size, size))
        if not fixed:
            bias = bias + apart(whole, size, shift)
            bias = bias.reshape(*(1,) * len(lead), *bias.shape)
        y = join_windows(self.attention(x, bias=bias, key=key), whole)
        y = y if fixed else jnp.roll(y, (shift, shift), (-3, -2))
        return y[..., : grid.rows, : grid.columns, :].reshape(*lead, -1, D)


def split_windows(x: Shaped[Array | np.ndarray, "*B R C D"], size: int) -> Shaped[Array | np.ndarray, "*B W S D"]:
    """Cut a grid into square windows, line by line.

    >>> split_windows(jnp.arange(8.0).reshape(2, 4, 1), 2)[..., 0]
    Array([[0., 1., 4., 5.],
           [2., 3., 6., 7.]], dtype=float32)
    """
    *lead, rows, columns, D = x.shape
    x = x.reshape(*lead, rows // size, size, columns // size, size, D)
    return x.swapaxes(-4, -3).reshape(*lead, -1, size * size, D)


def join_windows(x: Float[Array, "*B W S D"], grid: Grid) -> Float[Array, "*B R C D"]:
    """Put windows together again to the grid they were cut from."""
    *lead, _, places, D = x.shape
    size = math.isqrt(places)
    x = x.reshape(*lead, grid.rows // size, grid.columns // size, size, size, D)
    return x.swapaxes(-4, -3).reshape(*lead, *grid, D)


def apart(grid: Grid, size: int, shift: Int[Array, ""] | int) -> Float[Array, "W 1 S S"]:
    """Return what keeps those places of a window from each other that shifting has put there from opposite edges.

    >>> apart(Grid(1, 2), 1, 0).ravel()
    Array([0., 0.], dtype=float32)
    """
    regions = [(jnp.arange(side) >= side - size).astype(int) + (jnp.arange(side) >= side - shift) for side in grid]
    ids = split_windows((3 * regions[0][:, None] + regions[1])[..., None].astype(jnp.float32), size)
    # A product, as a comparison of numbers would be computed anew by XLA on CPU for each score of each image and head.
    region = jax.nn.one_hot(ids[..., 0], 9, dtype=jnp.float32)
    return ((region @ region.swapaxes(-1, -2) - 1) * -APART)[:, None]


def over_grid(weights: Float[np.ndarray, "W N S S"], shift: int, grid: Grid, size: int) -> Float[np.ndarray, "N T T"]:
    """Lay attention weights of one layer's windows out over the grid, without those for what it was filled up with.

    >>> over_grid(np.ones((2, 1, 1, 1)), 0, Grid(1, 2), 1)[0]
    array([[1., 0.],
           [0., 1.]])
    """
    count, fixed = grid.rows * grid.columns, min(grid) <= size
    size = min(size, *grid)
    places = np.pad(np.arange(count).reshape(grid), [(0, -side % size) for side in grid], constant_values=count)
    places = places if fixed else np.roll(places, (-shift, -shift), (0, 1))
    ids = split_windows(places[..., None], size)[..., 0]
    full = np.zeros((weights.shape[1], count + 1, count + 1), weights.dtype)
    full[:, ids[:, :, None], ids[:, None, :]] = weights.swapaxes(0, 1)
    return full[:, :count, :count]
