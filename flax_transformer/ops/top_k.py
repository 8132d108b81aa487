"""The k largest of many values, exactly. Axes: *B batch, R rows, V values, C chunks of a row."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

_CHUNK = 64
"""Width over which maxima are taken first; 64 was the fastest of 64, 128 and 256 on CPU."""


def largest(values: Float[Array, "*B V"], k: int) -> tuple[Float[Array, "*B {k}"], Int[Array, "*B {k}"]]:
    """Return the k largest values and their indices, equal values by lowest index: `lax.top_k`, faster.

    Only the k chunks with the largest maxima can hold one of the k largest values. So one vectorised
    maximum over the whole axis and two small sorts replace the sort of the axis, exactly: of equal maxima
    the earlier chunk is kept, and kept chunks are put back in order before the second sort. How zeros of different
    sign are ordered is not defined.

    >>> [x.tolist() for x in largest(jnp.array([3.0, 5.0, 1.0, 5.0]), 2)]
    [[5.0, 5.0], [1, 3]]
    """
    size = values.shape[-1]
    if not 1 <= k <= size:
        raise ValueError(f"k must be between 1 and the size of the last axis, got k={k}, size={size}")
    return largest_after(values[..., None, :], k)


def chunk_maxima(values: Float[Array, "*B V"]) -> Float[Array, "*B C"]:
    """Return the largest value of each chunk."""
    *batch, size = values.shape
    chunks = -(-size // _CHUNK)
    padded = jnp.pad(values.reshape(-1, size), ((0, 0), (0, chunks * _CHUNK - size)), constant_values=-jnp.inf)
    return padded.reshape(-1, chunks, _CHUNK).max(-1).reshape(*batch, chunks)


def largest_after(
    values: Float[Array, "*B R V"],
    k: int,
    change: Callable[[Array, Any], Array] = lambda values, of_row: values,
    of_row: Any = (),
    peaks: Float[Array, "*B R C"] | None = None,
) -> tuple[Float[Array, "*B {k}"], Int[Array, "*B {k}"]]:
    """Return the k largest of all rows after each value was changed, and their indices in the rows one after another.

    As `change` is nowhere decreasing, the largest value of a chunk stays the largest: few chunks need be changed.

    Args:
      change: `change(values, of_row)`, elementwise and non-decreasing in values.
      of_row: a pytree of [*B, R], numbers of each row; `change` is given them with an axis of 1 after them.
      peaks: `chunk_maxima(values)`, where they are known.
    """
    *batch, R, size = values.shape
    chunks = -(-size // _CHUNK)
    if R * chunks <= 2 * k:
        changed = change(values, jax.tree.map(lambda x: x[..., None], of_row))
        return tuple(jax.lax.top_k(changed.reshape(*batch, -1), k))
    peaks = chunk_maxima(values) if peaks is None else peaks
    values, peaks = values.reshape(-1, R * size), peaks.reshape(-1, R, chunks)
    of_row = jax.tree.map(lambda x: x.reshape(-1, R), of_row)
    peaks = change(peaks, jax.tree.map(lambda x: x[..., None], of_row)).reshape(-1, R * chunks)
    kept = jnp.sort(jax.lax.top_k(peaks, k)[1], axis=-1)
    row, first = kept // chunks, kept % chunks * _CHUNK
    column = first[..., None] + jnp.arange(_CHUNK)
    index = row[..., None] * size + column
    # The gather reads the caller's array, so that the padded copy stays inside the fused maximum.
    found = jnp.take_along_axis(values, jnp.minimum(index, R * size - 1).reshape(-1, k * _CHUNK), axis=-1)
    found = change(
        found.reshape(index.shape),
        jax.tree.map(lambda x: jnp.take_along_axis(x, row, axis=-1)[..., None], of_row),
    )
    top, position = jax.lax.top_k(jnp.where(column < size, found, -jnp.inf).reshape(-1, k * _CHUNK), k)
    index = jnp.take_along_axis(index.reshape(-1, k * _CHUNK), position, axis=-1)
    return top.reshape(*batch, k), index.reshape(*batch, k)
