"""What the heads of an encoder of pictures look at, laid out over the picture.

Axes: L layers, B pictures, N heads, T tokens and patches that look, S those that are looked at, H W pixels.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from flax_transformer.nn import Grid

LARGEST = 1 << 21
"""Weights of a head and layer at most: those of 1,448 patches for as many."""


class Tiles(NamedTuple):
    """Patches of a picture, from its upper left corner."""

    grid: Grid
    size: tuple[int, int]
    """Height and width of each, in pixels."""

    def merged(self, rows: int, columns: int, grid: Grid | None = None) -> "Tiles":
        """Give those that are made of some rows and columns of them each; without a grid of as many as are whole."""
        grid = Grid(self.grid.rows // rows, self.grid.columns // columns) if grid is None else grid
        return Tiles(grid, (rows * self.size[0], columns * self.size[1]))


class PatchAttention(NamedTuple):
    """What every head of a stack of layers looks at: tokens first, then patches row by row."""

    name: str
    weights: Float[np.ndarray, "L N T S"] | None
    """None where there would be more than `LARGEST`."""
    tokens: tuple[str, ...]
    """Those before the patches, on both sides."""
    queries: Tiles
    keys: Tiles


def by_stack(found: Sequence[np.ndarray], depths: Sequence[int]) -> Iterator[Float[np.ndarray, "L B N T S"]]:
    """Give an array for each stack of layers, of values marked in a loop over them or one by one.

    >>> [x.shape for x in by_stack([np.zeros((2, 1, 4, 3, 3)), *2 * [np.zeros((1, 4, 3, 3))]], (2, 2))]
    [(2, 1, 4, 3, 3), (2, 1, 4, 3, 3)]
    """
    values = iter(found)
    for depth in depths:
        first = next(values)
        yield first if first.ndim == 5 else np.stack([first, *(next(values) for _ in range(depth - 1))])
