"""Hidden states that lie on a grid, as patches do, and a learned bias for every distance there, row- and columnwise.

Axes: N heads, P patches, T positions: patches, and perhaps a token before them; M distances.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from flax_transformer.frozen import frozen
from flax_transformer.nn.config import Precision, check_at_least, check_fields
from flax_transformer.nn.module import Module
from flax_transformer.ops import lookup, widen
from flax_transformer.ops.resample import bilinear, resample_relative_bias


@jax.tree_util.register_static
class Grid(NamedTuple):
    """How many rows and columns of patches hidden states are; the same for all that one program computes."""

    rows: int
    columns: int


@frozen
class GridBiasConfig:
    """A learned bias on attention scores for every distance in a grid and every head (Liu et al. 2021,
    https://arxiv.org/abs/2103.14030)."""

    grid: tuple[int, int]
    """Rows and columns of the largest grid, or window of one, whose distances there are."""
    heads: int
    """N."""
    token: bool = False
    """Whether a token stands before the patches, with biases of its own: from it, to it, and of it to itself."""
    precision: Precision = Precision()

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "heads")
        if min(self.grid) < 1:
            raise ValueError(f"a grid must have a row and a column, got {self.grid}")

    @property
    def distances(self) -> int:
        """M, of patches from patches."""
        rows, columns = self.grid
        return (2 * rows - 1) * (2 * columns - 1)

    def build(self, rngs: nnx.Rngs) -> "GridBias":
        """Make the table."""
        return GridBias(self, rngs=rngs)


class GridBias(Module):
    """Biases [N, T, T] of attention between all positions of a grid."""

    def __init__(self, cfg: GridBiasConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        shape, dtype = (cfg.distances + 3 * cfg.token, cfg.heads), cfg.precision.dtypes["param_dtype"]
        table = nnx.initializers.normal(0.02)(rngs.params(), shape, dtype)
        self.table = nnx.Param(table, out_sharding=(None, "heads"), eager_sharding=False)

    def __call__(self, grid: Grid) -> Float[Array, "N T T"]:
        """Give the biases of a grid no larger than the table's, in float32 or more.

        Raises:
          ValueError: for a larger grid.
        """
        if grid.rows > self.cfg.grid[0] or grid.columns > self.cfg.grid[1]:
            raise ValueError(
                f"a grid must be within {'×'.join(map(str, self.cfg.grid))}, got {grid.rows}×{grid.columns}"
            )
        return self._biases(self.table[...], grid, self.cfg.grid)

    def resampled(self, grid: Grid) -> Float[Array, "N T T"]:
        """Give the biases of a grid of any size: the distances of the table's, stretched to it, bilinear."""
        tokens = 3 * self.cfg.token
        table = resample_relative_bias(
            widen(self.table[...]), grid, tokens=tokens, window=self.cfg.grid, kernel=bilinear
        )
        return self._biases(table, grid, grid)

    def _biases(self, table: Float[Array, "M N"], grid: Grid, of: tuple[int, int]) -> Float[Array, "N T T"]:
        index = grid_distances(grid, of)
        if self.cfg.token:
            last = len(table) - 3
            index = np.pad(index, ((1, 0), (1, 0)), constant_values=last)
            index[1:, 0], index[0, 0] = last + 1, last + 2
        return jnp.moveaxis(widen(lookup(table, jnp.asarray(index))), -1, 0)


def grid_distances(grid: tuple[int, int], of: tuple[int, int]) -> Int[np.ndarray, "P P"]:
    """Number the distances from every key to every query of a grid among those of a larger grid, line by line.

    >>> grid_distances((1, 2), (1, 2)).tolist()
    [[1, 0], [2, 1]]
    """
    rows, columns = (place.ravel() for place in np.indices(grid))
    down, across = (place[:, None] - place + size - 1 for place, size in zip((rows, columns), of, strict=True))
    return down * (2 * of[1] - 1) + across
