"""Shapes that fill a box, for images that are drawn here.

Axes: H W height and width in pixels.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float

ShapeMask = Callable[[Float[np.ndarray, "H 1"], Float[np.ndarray, "1 W"]], Bool[np.ndarray, "H W"]]

_SHAPES: dict[str, ShapeMask] = {
    "ellipse": lambda y, x: x**2 + y**2 <= 1,
    "rectangle": lambda y, x: (abs(x) <= 1) & (abs(y) <= 1),
    "triangle": lambda y, x: abs(x) <= (y + 1) / 2 + 1 / x.size,
    "cross": lambda y, x: (abs(x) <= 1 / 3) | (abs(y) <= 1 / 3),
    "diamond": lambda y, x: abs(x) + abs(y) <= 1 + 1 / x.size,
    "ring": lambda y, x: (x**2 + y**2 <= 1) & (x**2 + y**2 >= 0.36),
    "frame": lambda y, x: (abs(x) >= 0.6) | (abs(y) >= 0.6),
    "corner": lambda y, x: (x <= -1 / 3) | (y >= 1 / 3),
}
ALL_SHAPES = tuple(_SHAPES)
SHAPES = ALL_SHAPES[:4]
"""Those that most drawings are of."""


def draw_shape(name: str, height: int, width: int) -> Bool[np.ndarray, "H W"]:
    """Return which pixels of a box a shape covers; it touches all four sides.

    Args:
      name: one of `ALL_SHAPES`.

    >>> draw_shape("cross", 3, 3).astype(int).tolist()
    [[0, 1, 0], [1, 1, 1], [0, 1, 0]]
    """
    y, x = ((np.arange(count) + 0.5) / count * 2 - 1 for count in (height, width))
    return _SHAPES[name](y[:, None], x[None])
