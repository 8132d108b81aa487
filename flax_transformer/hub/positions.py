"""Tables of positions for another size of images: how a row of a weight table fits them (`TensorRow.fit`).

Axes: P positions, I frames, D width, N heads.
"""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from flax_transformer.hub.fields import Fields
from flax_transformer.ops.resample import (
    Kernel,
    bicubic,
    bilinear,
    resample,
    resample_positions,
    resample_relative_bias,
)
from flax_transformer.ops.resample_video import resample_video_positions

GridOf = Callable[[Fields], tuple[int, int]]
"""Rows and columns of patches, by config.json."""


def fitted_positions(grid: GridOf, kernel: Kernel = bicubic) -> Callable[..., np.ndarray]:
    """Resample positions [*, P, D] of patches; what is before them, of tokens, stays."""

    def fit(tensor: np.ndarray, before: Any, after: Any) -> np.ndarray:
        old = grid(before)
        tokens = tensor.shape[-2] - old[0] * old[1]
        return np.asarray(resample_positions(jnp.asarray(tensor), grid(after), tokens=tokens, grid=old, kernel=kernel))

    return fit


def fitted_video_positions(grid: Callable[[Fields], tuple[int, int, int]]) -> Callable[..., np.ndarray]:
    """Resample positions [1, P, D] of tubelets; what is before them, of tokens, stays."""

    def fit(tensor: np.ndarray, before: Any, after: Any) -> np.ndarray:
        old = grid(before)
        tokens = tensor.shape[-2] - math.prod(old)
        return np.asarray(resample_video_positions(jnp.asarray(tensor[0]), grid(after), tokens=tokens, grid=old))[None]

    return fit


def fitted_times(frames: Callable[[Fields], int], kernel: Kernel) -> Callable[..., np.ndarray]:
    """Resample positions [1, I, D] of frames."""

    def fit(tensor: np.ndarray, before: Any, after: Any) -> np.ndarray:
        rows = jnp.asarray(tensor[0])[:, None]
        return np.asarray(resample(rows, (frames(after), 1), kernel=kernel))[:, 0][None]

    return fit


def fitted_biases(grid: GridOf, tokens: int) -> Callable[..., np.ndarray]:
    """Resample biases [P, N] by distance, bilinear; the last `tokens` of them stay."""

    def fit(tensor: np.ndarray, before: Any, after: Any) -> np.ndarray:
        table, window = jnp.asarray(tensor), grid(before)
        return np.asarray(resample_relative_bias(table, grid(after), tokens=tokens, window=window, kernel=bilinear))

    return fit
