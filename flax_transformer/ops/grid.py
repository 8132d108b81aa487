"""Telling a Transformer where things are in a picture.

Axes: P places, rows times columns, D width.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

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
