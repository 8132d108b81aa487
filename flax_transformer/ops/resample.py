"""Resampling of grids as torch's `interpolate` does it, and of the position tables that vision models are trained with.

Cubic convolution (Keys 1981) with a = −0.75 and, below, no smoothing before a grid is made smaller: `smooth_bicubic`,
as `jax.image.resize`, has a = −0.5 and smooths. Pixels are areas (`align_corners=False`); beyond the edge is what is on
the edge.
Axes: H × W the old grid, h × w the new one, C channels, P positions, D model width, N heads.
"""

from collections.abc import Callable
from math import isqrt

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from flax_transformer.ops.float32 import at_least_float32

Size = tuple[int, int]
Number = np.floating | np.ndarray | float
Kernel = Callable[[int, int, float | None, DTypeLike], np.ndarray]
"""Gives the weights of the old points, [new, old], from both numbers of points, their ratio, and the floats to use."""


def bilinear(
    old: int, new: int, ratio: float | None = None, dtype: DTypeLike = np.float32
) -> Float[np.ndarray, "{new} {old}"]:
    """Weigh the two nearest points by their nearness.

    >>> bilinear(2, 4).tolist()
    [[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [0.0, 1.0]]
    """
    place = np.maximum(_places(old, new, ratio, dtype), 0)
    first = np.minimum(place.astype(np.int64), old - 1)
    rest = np.clip(place - first.astype(dtype), 0, 1).astype(dtype)
    return _matrix(old, first, (1 - rest, rest))


def bicubic(
    old: int, new: int, ratio: float | None = None, dtype: DTypeLike = np.float32
) -> Float[np.ndarray, "{new} {old}"]:
    """Weigh the four nearest points by cubic convolution, a = −0.75.

    >>> bicubic(3, 1).tolist(), bicubic(4, 2)[0].tolist()
    ([[0.0, 1.0, 0.0]], [0.5, 0.59375, -0.09375, 0.0])
    """
    place = _places(old, new, ratio, dtype)
    first = np.minimum(np.floor(place).astype(np.int64), old - 1)
    rest = np.clip(place - first.astype(dtype), 0, 1).astype(dtype)
    a = -0.75

    def near(x: np.ndarray) -> np.ndarray:  # 0 ≤ x ≤ 1
        return _fused(_fused(a + 2, x, -(a + 3)) * x, x, 1.0)

    def far(x: np.ndarray) -> np.ndarray:  # 1 ≤ x ≤ 2
        return _fused(_fused(_fused(a, x, -5 * a), x, 8 * a), x, -4 * a)

    return _matrix(old, first - 1, (far(rest + 1), near(rest), near(1 - rest), far(2 - rest)))


def smooth_bicubic(
    old: int, new: int, ratio: float | None = None, dtype: DTypeLike = np.float32
) -> Float[np.ndarray, "{new} {old}"]:
    """Weigh by cubic convolution, a = −0.5, as wide as a new point where there are fewer of them, the old points that
    there are: torch's bicubic with `antialias`.

    >>> smooth_bicubic(4, 1)[0].round(2)
    array([0.22, 0.28, 0.28, 0.22], dtype=float32)
    """
    step = old / new if ratio is None else 1 / ratio
    wide = max(step, 1.0)
    centre = (step * (np.arange(new) + 0.5))[:, None]
    at = np.arange(old)
    first = np.maximum(np.floor(centre - 2 * wide + 0.5), 0)
    last = np.minimum(np.floor(centre + 2 * wide + 0.5), old)
    x, a = np.abs(at + 0.5 - centre) / wide, -0.5
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    weights = np.where((at >= first) & (at < last), np.where(x < 1, near, np.where(x < 2, far, 0.0)), 0.0)
    return (weights / weights.sum(1, keepdims=True)).astype(dtype)


def adaptive_mean(
    old: int, new: int, ratio: float | None = None, dtype: DTypeLike = np.float32
) -> Float[np.ndarray, "{new} {old}"]:
    """Weigh alike all points that a new one overlaps: torch's `adaptive_avg_pool`, which has no ratio.

    >>> adaptive_mean(3, 2).tolist()
    [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
    """
    at, places = np.arange(old), np.arange(new)[:, None]
    inside = (at >= places * old // new) & (at < -(-(places + 1) * old // new))
    return inside.astype(dtype) / inside.sum(1, keepdims=True).astype(dtype)


def nearest(
    old: int, new: int, ratio: float | None = None, dtype: DTypeLike = np.float32
) -> Float[np.ndarray, "{new} {old}"]:
    """Take the point that a new one begins in, as torch's "nearest" does.

    >>> nearest(2, 3).tolist()
    [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    """
    place = (np.arange(new, dtype=np.float32) * np.float32(1 / ratio if ratio else old / new)).astype(int)
    return (place.clip(0, old - 1)[:, None] == np.arange(old)).astype(dtype)


def resample(
    grid: Float[Array, "*B H W C"], size: Size, *, kernel: Kernel = bicubic, ratio: tuple[float, float] | None = None
) -> Float[Array, "*B h w C"]:
    """Resample a grid to another size, in float32 or more.

    Args:
      size: h and w.
      kernel: `bicubic`, `smooth_bicubic`, `bilinear`, `nearest`, `adaptive_mean`, or another that gives weights.
      ratio: new points for each old one, along both axes, where they are not just h/H and w/W: torch's `scale_factor`.
        DINOv2's own code has (h + 0.1) / H, which shifts all points a little.

    Raises:
      ValueError: a size below 1.

    >>> resample(jnp.array([[[1.0], [3.0]]]), (1, 4), kernel=bilinear)[0, :, 0]
    Array([1. , 1.5, 2.5, 3. ], dtype=float32)
    """
    if min(*size, *grid.shape[-3:-1]) < 1:
        raise ValueError(f"grids must have at least one point each way, got {grid.shape[-3:-1]} to {size}")
    if ratio is None and tuple(size) == grid.shape[-3:-1]:
        return grid
    dtype = at_least_float32(grid.dtype)
    ratios = ratio or (None, None)
    down, across = (
        jnp.asarray(kernel(old, new, each, dtype))
        for old, new, each in zip(grid.shape[-3:-1], size, ratios, strict=True)
    )
    exact = jax.lax.Precision.HIGHEST
    y = jnp.einsum("wW,...HWC->...HwC", across, grid.astype(dtype), precision=exact)
    return jnp.einsum("hH,...HwC->...hwC", down, y, precision=exact).astype(grid.dtype)


def resample_positions(
    table: Float[Array, "*B P D"], size: Size, *, tokens: int = 1, grid: Size | None = None, kernel: Kernel = bicubic
) -> Float[Array, "*B p D"]:
    """Make a table of learned positions fit another grid of patches, as fine-tuning at another resolution needs.

    What `transformers` does, without `scale_factor` or smoothing: bicubic with one token in front for `vit`, `dinov2`,
    `beit`, `clip` and the encoder of `vit_mae`, with two for `deit`, with none for `swin` and `siglip`. The decoder of
    `vit_mae` takes its P patches for one row: `grid=(1, P)` to `size=(1, p)`. `pvt` has no other resolution there; its
    authors' code is bilinear, each stage's table by itself.

    Args:
      table: positions of tokens that are no patches, then of the patches row by row.
      size: h and w in patches.
      tokens: how many stand in front and stay as they are.
      grid: H and W; a square by default.
      kernel: `bicubic` or `bilinear`.

    Raises:
      ValueError: positions that are not a grid.

    >>> resample_positions(jnp.arange(5.0)[:, None], (1, 1))[:, 0]
    Array([0. , 2.5], dtype=float32)
    """
    P = table.shape[-2] - tokens
    side = isqrt(max(P, 0))
    height, width = grid or (side, side)
    if P < 1 or height * width != P:
        shape = "a square" if grid is None else f"{height} × {width}"
        raise ValueError(f"positions must be {tokens} and {shape} of patches, got {table.shape[-2]}")
    patches = table[..., tokens:, :].reshape(*table.shape[:-2], height, width, -1)
    new = resample(patches, size, kernel=kernel).reshape(*table.shape[:-2], -1, table.shape[-1])
    return jnp.concatenate([table[..., :tokens, :], new], axis=-2)


def resample_relative_bias(
    table: Float[Array, "*B P N"], size: Size, *, tokens: int = 0, window: Size | None = None, kernel: Kernel = bicubic
) -> Float[Array, "*B p N"]:
    """Make a table of biases by distance, (2H − 1)(2W − 1) of them, fit another window of h × w patches.

    What `transformers` does: bilinear for `beit`, with the three biases to and from its class token behind the others;
    nothing for `swin`, whose windows keep their size: its authors' code is bicubic where another is trained on. (Of a
    `beit` whose window is no square `transformers` reads the table as (2W − 1) × (2H − 1), which it is not.)

    Args:
      table: a row for each distance, all of one vertical distance together.
      size: h and w of the new window in patches.
      tokens: how many biases behind the others stay as they are.
      window: H and W; a square by default.
      kernel: `bicubic` or `bilinear`.

    Raises:
      ValueError: biases that are not those of a window.

    >>> resample_relative_bias(jnp.array([[1.0], [5.0]]), (2, 1), tokens=1, kernel=bilinear)[:, 0]
    Array([1., 1., 1., 5.], dtype=float32)
    """
    P = table.shape[-2] - tokens
    side = isqrt(max(P, 0))
    height, width = (2 * each - 1 for each in window) if window else (side, side)
    if P < 1 or height * width != P or not height % 2:
        shape = f"a window of {window[0]} × {window[1]}" if window else "a square window"
        raise ValueError(f"biases must be those of {shape} and {tokens}, got {table.shape[-2]}")
    grid = table[..., :P, :].reshape(*table.shape[:-2], height, width, -1)
    new = resample(grid, (2 * size[0] - 1, 2 * size[1] - 1), kernel=kernel)
    return jnp.concatenate([new.reshape(*table.shape[:-2], -1, table.shape[-1]), table[..., P:, :]], axis=-2)


def _places(old: int, new: int, ratio: float | None, dtype: DTypeLike) -> np.ndarray:
    """Find where new points lie among old ones, in the floats torch has: a place may be just below a point."""
    step = np.asarray(old, dtype) / np.asarray(new, dtype) if ratio is None else np.asarray(1 / ratio, dtype)
    return _fused(step, np.arange(new, dtype=dtype) + np.asarray(0.5, dtype), -0.5)


def _fused(x: Number, y: np.ndarray, z: Number) -> np.ndarray:
    """Return x·y + z rounded once, as the instruction does that torch's weights come from."""
    return (np.float64(x) * np.float64(y) + z).astype(y.dtype)


def _matrix(old: int, first: np.ndarray, weights: tuple[np.ndarray, ...]) -> np.ndarray:
    matrix = np.zeros((len(first), old), weights[0].dtype)
    for k, weight in enumerate(weights):
        np.add.at(matrix, (np.arange(len(first)), np.clip(first + k, 0, old - 1)), weight)
    return matrix
