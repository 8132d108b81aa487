"""What the heads of an encoder of images look at, laid out over the image.

Axes: L layers, B images, N heads, T tokens and patches that look, S those that are looked at, H W pixels.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from flax_transformer.nn import Grid

LARGEST = 1 << 21
"""Weights of a head and layer at most: those of 1,448 patches for as many."""


class Tiles(NamedTuple):
    """Patches of an image, from its upper left corner, and the tokens that come before them."""

    grid: Grid
    size: tuple[int, int]
    """Height and width of each, in pixels."""
    tokens: tuple[str, ...] = ()
    """Names of what stands at no place of the image."""

    def merged(self, rows: int, columns: int, grid: Grid | None = None) -> "Tiles":
        """Return those that are made of some rows and columns of them each; without a grid of as many as are whole."""
        grid = Grid(self.grid.rows // rows, self.grid.columns // columns) if grid is None else grid
        return Tiles(grid, (rows * self.size[0], columns * self.size[1]), self.tokens)


class PatchAttention(NamedTuple):
    """What every head of a stack of layers looks at: tokens first, then patches row by row."""

    name: str
    weights: Float[np.ndarray, "L N T S"] | None
    """None where there would be more than `LARGEST`."""
    queries: Tiles
    """What looks."""
    keys: Tiles
    """What is looked at."""


def by_stack(
    found: Iterable[np.ndarray], depths: Sequence[int], axes: int = 4
) -> Iterator[Float[np.ndarray, "L B *W N T S"]]:
    """Return an array for each stack of layers, of values marked in a loop over them or one by one.

    Args:
      axes: of the values of one layer.

    >>> [x.shape for x in by_stack([np.zeros((2, 1, 4, 3, 3)), *2 * [np.zeros((1, 4, 3, 3))]], (2, 2))]
    [(2, 1, 4, 3, 3), (2, 1, 4, 3, 3)]
    """
    values = iter(found)
    for depth in depths:
        first = next(values)
        yield first if first.ndim > axes else np.stack([first, *(next(values) for _ in range(depth - 1))])
