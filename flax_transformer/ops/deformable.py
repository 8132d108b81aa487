"""Deformable attention: each query looks at a few points of several feature maps, which it chooses (Zhu et al. 2020,
https://arxiv.org/abs/2010.04159).

The function computes what `multi_scale_deformable_attention` of `transformers` does, after the authors' own
`ms_deform_attn_core_pytorch` (https://github.com/fundamentalvision/Deformable-DETR).

Axes: B batch, T queries, S places of all feature maps, I J height and width of one, N heads, H head width, R feature
maps, P points of each, C channels.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flax_transformer.ops.float32 import widen

Size = tuple[int, int]


def sample_points(grid: Float[Array, "*B I J C"], points: Float[Array, "*B P 2"]) -> Float[Array, "*B P C"]:
    """Read a grid between its places, bilinear; what lies beyond its edges is zero.

    As torch's `grid_sample` with `padding_mode="zeros"` and `align_corners=False`, whose coordinates are 2·point − 1.

    Args:
      points: x and y of each, as fractions of the grid's width and height; the middle of the first place is
        (0.5 / J, 0.5 / I).

    >>> sample_points(jnp.array([[[2.0], [4.0]]]), jnp.array([[0.25, 0.5], [0.5, 0.5], [0.0, 0.5]]))[:, 0]
    Array([2., 3., 1.], dtype=float32)
    """
    *lead, rows, columns, C = grid.shape
    flat, weights = bilinear_corners(points, (rows, columns))
    values = jnp.take_along_axis(grid.reshape(*lead, rows * columns, C), flat.reshape(*lead, -1, 1), axis=-2)
    values = values.reshape(*weights.shape, C)
    return jnp.einsum("...c,...ck->...k", weights, widen(values)).astype(grid.dtype)


def bilinear_corners(points: Float[Array, "*B P 2"], size: Size) -> tuple[Int[Array, "*B P 4"], Float[Array, "*B P 4"]]:
    """Return the four places of a grid around each point, line by line, and how much each counts: 0 beyond the edge.

    Args:
      points: as of `sample_points`.
      size: rows and columns of the grid.
    """
    rows, columns = size
    places = widen(points) * np.array([columns, rows], np.float32) - 0.5
    first = jnp.floor(places)
    rest, corners = (places - first)[..., None, :], np.array([(0, 0), (1, 0), (0, 1), (1, 1)])
    weights = jnp.prod(jnp.abs(1 - corners - rest), axis=-1)
    at = first.astype(jnp.int32)[..., None, :] + corners  # [*B, P, 4, 2]
    inside = ((at >= 0) & (at < np.array([columns, rows]))).all(-1)
    x, y = jnp.clip(at[..., 0], 0, columns - 1), jnp.clip(at[..., 1], 0, rows - 1)
    return y * columns + x, jnp.where(inside, weights, 0)


def deformable_attention(
    values: Float[Array, "*B S N H"],
    sizes: Sequence[Size],
    points: Float[Array, "*B T N R P 2"],
    weights: Float[Array, "*B T N R P"],
) -> Float[Array, "*B T N H"]:
    """Sum what several feature maps have at the points of every query, by weights that it gives them.

    Args:
      values: of all places of all maps, map by map, each line by line.
      sizes: height and width of each map.
      points: x and y as fractions of each map, as of `sample_points`.
      weights: of all points of a query, which add up to 1.

    Raises:
      ValueError: maps of other sizes than there are values, or points of more or fewer maps.

    >>> values, points = jnp.arange(4.0)[:, None, None], jnp.full((1, 1, 1, 1, 2), 0.5)
    >>> deformable_attention(values, [(2, 2)], points, jnp.ones((1, 1, 1, 1)))[0, 0]
    Array([1.5], dtype=float32)
    """
    ends = np.cumsum([rows * columns for rows, columns in sizes])
    if values.shape[-3] != ends[-1] or points.shape[-3] != len(sizes):
        raise ValueError(
            f"values must be of maps of {', '.join(f'{rows}×{columns}' for rows, columns in sizes)}, S={ends[-1]}, and "
            f"points of each of them, got S={values.shape[-3]} and points of {points.shape[-3]} maps"
        )
    by_head = jnp.swapaxes(values, -3, -2)  # [*B, N, S, H]
    *lead, T, N, _, P, _ = points.shape
    found = 0.0
    for level, (part, (rows, columns)) in enumerate(zip(jnp.split(by_head, ends[:-1], axis=-2), sizes, strict=True)):
        grid = part.reshape(*lead, N, rows, columns, -1)
        own = jnp.swapaxes(points[..., level, :, :], -4, -3).reshape(*lead, N, T * P, 2)
        sampled = sample_points(grid, own).reshape(*lead, N, T, P, -1)
        found = found + jnp.einsum("...ntph,...tnp->...tnh", widen(sampled), widen(weights[..., level, :]))
    return found.astype(values.dtype)
