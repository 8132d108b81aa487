"""Position tables of videos for other numbers of frames and sizes of images than they were trained with.

Axes: I × H × W the old grid of times, rows and columns, i × h × w the new one, P positions, D model width.
"""

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from flax_transformer.ops.resample import Kernel, bicubic, bilinear, resample


def nearest(
    old: int, new: int, ratio: float | None = None, dtype: DTypeLike = np.float32
) -> Float[np.ndarray, "{new} {old}"]:
    """Take one old point for each new one, as torch's "nearest" does: the one in which its left edge lies.

    >>> nearest(2, 3).tolist()
    [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    """
    step = np.float32(old / new) if ratio is None else np.float32(1 / ratio)
    first = np.minimum((np.arange(new, dtype=np.float32) * step).astype(np.int64), old - 1)
    return np.eye(old, dtype=dtype)[first]


def resample_video_positions(
    table: Float[Array, "P D"],
    size: tuple[int, int, int],
    *,
    tokens: int,
    grid: tuple[int, int, int],
    kernel: Kernel = bicubic,
) -> Float[Array, "p D"]:
    """Make a table of learned positions fit other videos: every time's own as an image's are, then linear over times.

    Args:
      table: positions of tokens that are no patches, then of the patches time by time, row by row.
      size: i, h and w in patches.
      tokens: how many stand in front and stay as they are.
      grid: I, H and W.
      kernel: for rows and columns.

    Raises:
      ValueError: positions that are not those of the grid.

    >>> resample_video_positions(jnp.arange(5.0)[:, None], (4, 1, 1), tokens=1, grid=(2, 1, 2), kernel=bilinear)[:, 0]
    Array([0. , 1.5, 2. , 3. , 3.5], dtype=float32)
    """
    if size == grid:
        return table
    times, rows, columns = grid
    if table.shape[-2] != tokens + times * rows * columns:
        shape = f"{times} × {rows} × {columns}"
        raise ValueError(f"positions must be {tokens} and {shape} of patches, got {table.shape[-2]}")
    images = resample(table[tokens:].reshape(times, rows, columns, -1), size[1:], kernel=kernel)
    flat = images.reshape(times, size[1] * size[2], -1)
    resampled = resample(flat, (size[0], flat.shape[1]), kernel=bilinear)
    return jnp.concatenate([table[:tokens], resampled.reshape(-1, table.shape[-1])])
