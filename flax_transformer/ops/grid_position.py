"""Telling a Transformer where things are in an image.

Axes: B batch, P places, rows I times columns J, D width; H W height and width in pixels, or of a table.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.ops.float32 import widen
from flax_transformer.ops.position import sinusoidal_halves


def sinusoidal_grid(rows: int, columns: int, width: int) -> Float[Array, "P D"]:
    """Encode the places of a grid, line by line: the column in the first half of the width, the row in the second.

    Each half has all sines first, then all cosines (He et al. 2021, https://arxiv.org/abs/2111.06377, as published).

    Raises:
      ValueError: for a width that four does not divide.

    >>> sinusoidal_grid(2, 3, 8).shape
    (6, 8)
    """
    if width % 4:
        raise ValueError(f"positions in a grid need a width that is a multiple of 4, got D={width}")
    row, column = (axis.ravel() for axis in jnp.meshgrid(jnp.arange(rows), jnp.arange(columns), indexing="ij"))
    return jnp.concatenate([sinusoidal_halves(column, width // 2), sinusoidal_halves(row, width // 2)], axis=-1)


def sinusoidal_visible_grid(seen: Bool[Array, "*B I J"], width: int) -> Float[Array, "*B P D"]:
    """Encode the places of a grid of which a part is an image, line by line: the row in the first half of the width.

    Rows and columns of the image are counted from 1 and scaled to end at 2π; sines and cosines take turns (Carion et
    al. 2020, https://arxiv.org/abs/2005.12872).

    Args:
      seen: where there is an image.

    Raises:
      ValueError: for a width that four does not divide.

    >>> sinusoidal_visible_grid(jnp.ones((2, 3), bool), 8).shape
    (6, 8)
    """
    if width % 4:
        raise ValueError(f"positions in a grid need a width that is a multiple of 4, got D={width}")
    half = width // 2
    periods = jnp.float32(10_000) ** (2 * (jnp.arange(half) // 2) / half)

    def encode(axis: int) -> Array:
        count = jnp.cumsum(seen, axis=axis, dtype=jnp.float32)
        last = jnp.take(count, jnp.array([count.shape[axis] - 1]), axis=axis)
        angles = (count / (last + 1e-6) * (2 * math.pi))[..., None] / periods
        turns = jnp.stack([jnp.sin(angles[..., ::2]), jnp.cos(angles[..., 1::2])], axis=-1)
        return turns.reshape(*seen.shape, half)

    return jnp.concatenate([encode(-2), encode(-1)], axis=-1).reshape(*seen.shape[:-2], -1, width)


def patch_centres(rows: int, columns: int) -> Float[Array, "P 2"]:
    """Return row and column of the middle of each place of a grid, line by line, where the grid spans −1 to 1.

    >>> patch_centres(1, 2)
    Array([[ 0. , -0.5],
           [ 0. ,  0.5]], dtype=float32)
    """
    sides = ((np.arange(count, dtype=np.float32) + np.float32(0.5)) / np.float32(count) for count in (rows, columns))
    places = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)
    return jnp.asarray(np.float32(2) * places - np.float32(1))


def grid_angles(places: Float[Array, "P 2"], width: int, base: float) -> Float[Array, "P half"]:
    """Return the angles by which pairs of channels turn at places of an image: the first half of them by the row, the
    second by the column, 2π at the edge for the first pair of each (Siméoni et al. 2025,
    https://arxiv.org/abs/2508.10104).

    Args:
      places: row and column, as of `patch_centres`.
      width: H, of a head.
      base: of the frequencies.

    Raises:
      ValueError: for a width that four does not divide.

    >>> grid_angles(jnp.array([[0.5, 1.0]]), 4, 100.0)
    Array([[3.14..., 6.28...]], dtype=float32)
    """
    return _turned(2 * math.pi * places, width, base)


def number_angles(places: Float[Array, "P 2"], width: int, base: float) -> Float[Array, "P half"]:
    """Return angles as `grid_angles` does, of places as of `patch_numbers`: 1 at the second row or column for the first
    pair of each.

    >>> number_angles(jnp.array([[0.0, 1.0]]), 8, 16.0)
    Array([[0.  , 0.  , 1.  , 0.25]], dtype=float32)
    """
    return _turned(places, width, base)


def _turned(places: Array, width: int, base: float) -> Array:
    if width % 4:
        raise ValueError(
            f"rows and columns turn pairs of channels each, so that H must be a multiple of 4, got {width}"
        )
    exponents = (np.arange(width // 4) * (4 / width)).astype(np.float32)
    frequencies = np.float32(1) / np.power(float(base), exponents.astype(np.float64)).astype(np.float32)
    return (places[..., None] * frequencies).reshape(*places.shape[:-1], width // 2)


def patch_numbers(rows: int, columns: int, like: tuple[int, int] | None = None) -> Float[Array, "P 2"]:
    """Return row and column of each place of a grid, line by line, counted from 0.

    Args:
      like: rows and columns of another grid, to whose numbers these are scaled (Fang et al. 2023,
        https://arxiv.org/abs/2303.11331, as published); None: they are not.

    >>> patch_numbers(1, 2, (4, 4))
    Array([[0., 0.],
           [0., 2.]], dtype=float32)
    """
    sides = [np.arange(count, dtype=np.float32) for count in (rows, columns)]
    if like is not None:
        sides = [side / np.float32(len(side)) * np.float32(other) for side, other in zip(sides, like, strict=True)]
    return jnp.asarray(np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2))


def shrink_mask(mask: Bool[Array, "*B H W"], rows: int, columns: int) -> Bool[Array, "*B I J"]:
    """Make a mask of pixels one of coarser places, each as the pixel nearest to its upper left corner.

    >>> shrink_mask(jnp.arange(6)[None] < 4, 1, 3)
    Array([[ True,  True, False]], dtype=bool)
    """

    def picked(count: int, size: int) -> np.ndarray:
        return np.floor(np.arange(count, dtype=np.float32) * np.float32(size / count)).astype(int).clip(0, size - 1)

    height, width = mask.shape[-2:]
    return mask[..., picked(rows, height)[:, None], picked(columns, width)]


def resize_places(table: Float[Array, "H W D"], shapes: Int[Array, "*B 2"], places: int) -> Float[Array, "*B P D"]:
    """Resize a table of learned places to the grid of each image, bilinear and antialiased, line by line.

    A line of images of several grids is filled up with the first place (Tschannen et al. 2025,
    https://arxiv.org/abs/2502.14786).

    Args:
      shapes: rows and columns of each.
      places: P, of the longest.

    >>> resize_places(jnp.array([[[0.0], [6.0]]]), jnp.array([1, 3]), 4)[:, 0]
    Array([0., 3., 6., 0.], dtype=float32)
    """
    sides = shapes.astype(jnp.float32)[..., None, :]
    numbers = jnp.arange(places, dtype=jnp.float32)[:, None]
    rows = jnp.floor(numbers / sides[..., 1:])
    index = jnp.concatenate([rows, numbers - rows * sides[..., 1:]], axis=-1)
    index = index * (numbers < jnp.prod(sides, axis=-1, keepdims=True))

    def weights(axis: int) -> Array:
        scale = table.shape[axis] / sides[..., axis]
        centre = (index[..., axis] + 0.5) * scale - 0.5
        away = jnp.abs(jnp.arange(table.shape[axis], dtype=jnp.float32) - centre[..., None])
        found = jnp.maximum(1 - away / jnp.maximum(scale, 1)[..., None], 0)
        return found / found.sum(-1, keepdims=True)

    exact = jax.lax.Precision.HIGHEST
    return jnp.einsum("...ph,...pw,hwd->...pd", weights(0), weights(1), widen(table), precision=exact)


def stretch_places(table: Float[Array, "H W D"], seen: Bool[Array, "*B I J"]) -> Float[Array, "*B I J D"]:
    """Lay a table of learned places over the part of a grid that is an image, corner on corner, bilinear.

    An image begins at the upper left; what is beside it has places 0 (Kim et al. 2021,
    https://arxiv.org/abs/2102.03334).

    Args:
      seen: where there is an image.

    >>> stretch_places(jnp.array([[[0.0], [6.0]]]), jnp.arange(4)[None] < 3)[0, :, 0]
    Array([0., 3., 6., 0.], dtype=float32)
    """

    def weights(count: Array, places: int, old: int) -> Array:
        place = jnp.arange(places, dtype=jnp.float32)
        step = (old - 1) / jnp.maximum(count - 1, 1).astype(jnp.float32)
        near = 1 - jnp.abs((step[..., None] * place)[..., None] - jnp.arange(old))
        return jnp.maximum(near, 0) * (place < count[..., None])[..., None]

    high, wide = seen[..., :, 0].sum(-1), seen[..., 0, :].sum(-1)
    down, across = weights(high, seen.shape[-2], table.shape[0]), weights(wide, seen.shape[-1], table.shape[1])
    exact = jax.lax.Precision.HIGHEST
    found = jnp.einsum("...jW,HWD->...HjD", across, widen(table), precision=exact)
    return jnp.einsum("...iH,...HjD->...ijD", down, found, precision=exact)
