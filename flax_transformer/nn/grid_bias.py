"""A learned bias of attention scores for every distance on a grid, row- and columnwise (Liu et al. 2021,
https://arxiv.org/abs/2103.14030).

Axes: B batch, D width, N heads, P patches, T positions: patches, and perhaps a token before them; M distances.
"""

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.nn.attention import AttentionConfig
from flax_transformer.nn.config import Precision, check_at_least, check_fields
from flax_transformer.nn.grid import Grid
from flax_transformer.nn.module import Module
from flax_transformer.ops import Mask, widen
from flax_transformer.ops.resample import bilinear, resample_relative_bias


@frozen
class GridBiasConfig:
    """A learned bias on attention scores for every distance in a grid and every head."""

    grid: tuple[int, int]
    """Rows and columns of the largest grid, or window of one, whose distances there are."""
    heads: int
    """N."""
    token: bool = False
    """Whether a token stands before the patches, with biases of its own: from it, to it, and of it to itself."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

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
        """Return the biases of a grid no larger than the table's, in float32 or more.

        Raises:
          ValueError: for a larger grid.
        """
        if grid.rows > self.cfg.grid[0] or grid.columns > self.cfg.grid[1]:
            raise ValueError(
                f"a grid must be within {'×'.join(map(str, self.cfg.grid))}, got {grid.rows}×{grid.columns}"
            )
        return self._biases(self.table[...], grid, self.cfg.grid)

    def resampled(self, grid: Grid) -> Float[Array, "N T T"]:
        """Return the biases of a grid of any size: the distances of the table's, stretched to it, bilinear."""
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
        # All are within the table, and gradients are added up in float32, as `lookup` adds them.
        return jnp.moveaxis(jnp.take(widen(table), jnp.asarray(index), axis=0, mode="clip"), -1, 0)


@frozen
class GridAttentionConfig:
    """Attention over all of a grid, with biases of its own for distances (Bao et al. 2021,
    https://arxiv.org/abs/2106.08254)."""

    attention: AttentionConfig
    """Attention among the positions of a grid."""
    relative: GridBiasConfig | None = None
    """None: there are none, but those that it may be given."""

    takes = "grid", "bias", "mask"

    def __post_init__(self):
        check_fields(self)
        if self.relative is not None and self.relative.heads != self.attention.heads:
            raise ValueError(f"biases must be of N={self.attention.heads} heads, got {self.relative.heads}")

    @property
    def embed(self) -> int:
        """D, the width of the residual stream."""
        return self.attention.embed

    def build(self, rngs: nnx.Rngs) -> "GridAttention":
        """Make the layer."""
        return GridAttention(self, rngs=rngs)


class GridAttention(Module):
    """Attention over all of a grid, of the table's size or another."""

    def __init__(self, cfg: GridAttentionConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.attention = cfg.attention.build(rngs)
        if cfg.relative is not None:
            self.relative = cfg.relative.build(rngs)

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        *,
        grid: Grid,
        bias: Float[Array, "N T T"] | None = None,
        mask: Mask | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Attend.

        Args:
          grid: where the positions are.
          bias: added to its own.
          mask: what each query may see.
          key: for attention dropout; None means none.
        """
        if self.cfg.relative is not None:
            own = self.relative.resampled(grid)
            bias = own if bias is None else own + bias
        return self.attention(x, mask=mask, bias=bias, key=key)


def grid_distances(grid: tuple[int, int], of: tuple[int, int]) -> Int[np.ndarray, "P P"]:
    """Number the distances from every key to every query of a grid among those of a larger grid, line by line.

    >>> grid_distances((1, 2), (1, 2)).tolist()
    [[1, 0], [2, 1]]
    """
    rows, columns = (place.ravel() for place in np.indices(grid))
    down, across = (place[:, None] - place + size - 1 for place, size in zip((rows, columns), of, strict=True))
    return down * (2 * of[1] - 1) + across
