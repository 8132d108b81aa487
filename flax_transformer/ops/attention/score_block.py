"""Blocks of the scores of attention: cutting operands into them, and what a mask says of one.

Axes as in `attention`; block (i, j) is of `rows` queries and `columns` keys.
"""

from numbers import Integral
from typing import NamedTuple

import jax
import jax.numpy as jnp

from flax_transformer.ops.mask import Mask


def pad_block(x, axis, block):
    """Fill up an axis to whole blocks with zeros; an axis of 1 broadcasts and stays."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % block if x.shape[axis] > 1 else 0)
    return jnp.pad(x, widths)


def fix_mask(mask, T, S, rows, columns):
    """Make what depends on T and S explicit, so that the mask means the same for padded arrays and for a block."""
    segments, dense = mask.segments, mask.dense
    return Mask(
        causal=mask.causal,
        window=mask.window,
        lengths=jnp.minimum(S, S if mask.lengths is None else mask.lengths),
        segments=None if segments is None else (pad_block(segments[0], -1, rows), pad_block(segments[1], -1, columns)),
        dense=None if dense is None else pad_block(pad_block(dense, -2, rows), -1, columns),
        offset=jnp.asarray(S - T if mask.offset is None else mask.offset),
        also=tuple(fix_mask(other, T, S, rows, columns) for other in mask.also),
    )


def cut_block(x, axis, index, block):
    """Take one block of an axis, counted from the end; an axis of 1 broadcasts and stays."""
    return x if x.shape[axis] == 1 else jax.lax.dynamic_slice_in_dim(x, index * block, block, x.ndim + axis)


def part_of(mask, i, j, rows, columns):
    """Return the mask of query block i against key block j."""
    segments = mask.segments
    if segments is not None:
        segments = cut_block(segments[0], -1, i, rows), cut_block(segments[1], -1, j, columns)
    return Mask(
        causal=mask.causal,
        window=mask.window,
        lengths=mask.lengths - j * columns,
        segments=segments,
        dense=None if mask.dense is None else cut_block(cut_block(mask.dense, -2, i, rows), -1, j, columns),
        offset=mask.offset + i * rows - j * columns,
        also=tuple(part_of(other, i, j, rows, columns) for other in mask.also),
    )


def reaches(part, rows, columns):
    """Return whether any query of the block may see any of its keys, by position and length alone."""
    reach = jnp.any(part.lengths > 0)
    left, right = (None, None) if part.window is None else part.window
    if part.causal:
        right = 0
    if right is not None:
        reach &= jnp.any(part.offset + rows - 1 + right >= 0)
    if left is not None:
        reach &= jnp.any(part.offset - left < columns)
    for other in part.also:
        reach |= reaches(other, rows, columns)
    return reach


class Band(NamedTuple):
    """Which blocks of the other axis a block of one must visit: all, or as many as a window reaches, side by side."""

    total: int
    """How many blocks the other axis has."""
    count: int
    """How many are visited."""
    start: int = 0
    """Where, on the other axis, what block 0 reaches begins."""
    step: int = 0
    """Positions in a block of one axis, and in a block of the other."""
    size: int = 1

    def first(self, i):
        """Return from which block on block i visits."""
        return jnp.clip((i * self.step + self.start) // self.size, 0, self.total - self.count)

    def cut(self, i, *arrays):
        """Return the numbers of the blocks that block i visits, and these blocks of arrays."""
        if self.count == self.total:
            return jnp.arange(self.total), *arrays
        first = self.first(i)
        blocks = (jax.lax.dynamic_slice_in_dim(x, first, self.count) for x in arrays)
        return first + jnp.arange(self.count), *blocks

    def put(self, i, whole, blocks):
        """Put blocks back where `cut` took them."""
        if self.count == self.total:
            return blocks
        return jax.lax.dynamic_update_slice_in_dim(whole, blocks, self.first(i), 0)


def bands(mask, T, S, rows, columns):
    """Return which blocks of keys each block of queries visits, and the reverse, by a window known beforehand."""
    queries, keys = -(-T // rows), -(-S // columns)
    whole = Band(keys, keys), Band(queries, queries)
    offset = S - T if mask is None or mask.offset is None else mask.offset
    if mask is None or mask.also or mask.window is None or not isinstance(queries * keys + offset, Integral):
        return whole
    left, right = mask.window
    right = 0 if mask.causal else right
    reach = rows + left + right
    return (
        _band(queries, keys, int(offset) - left, rows, columns, reach),
        _band(keys, queries, -int(offset) - right, columns, rows, columns - rows + reach),
    )


def _band(blocks, total, start, step, size, reach):
    visited = ((i * step + start + reach - 1) // size - (i * step + start) // size + 1 for i in range(blocks))
    return Band(total, min(total, max(visited)), start, step, size)
