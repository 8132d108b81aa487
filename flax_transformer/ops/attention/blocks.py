"""Positions cut into blocks, and blocks beside their neighbours.

W blocks of C positions; the last block is filled up with zeros.
"""

import jax.numpy as jnp
from jaxtyping import Array, Shaped

from flax_transformer.ops.attention.score_block import pad_block


def to_blocks(x: Shaped[Array, "..."], axis: int, size: int) -> Shaped[Array, "..."]:
    """Cut an axis, counted from the end, into blocks: [..., T, ...] becomes [..., W, C, ...].

    >>> to_blocks(jnp.arange(5), -1, 2).tolist()
    [[0, 1], [2, 3], [4, 0]]
    """
    x = pad_block(x, axis, size)
    axis += x.ndim
    return x.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :])


def from_blocks(blocks: Shaped[Array, "..."], axis: int, length: int) -> Shaped[Array, "..."]:
    """Undo `to_blocks`: join the axis, counted from the end, of the positions in a block with that of the blocks.

    >>> from_blocks(jnp.array([[0, 1], [2, 3], [4, 0]]), -1, 5).tolist()
    [0, 1, 2, 3, 4]
    """
    axis += blocks.ndim
    x = blocks.reshape(*blocks.shape[: axis - 1], -1, *blocks.shape[axis + 1 :])
    return x[(slice(None),) * (axis - 1) + (slice(length),)]


def with_neighbours(blocks: Shaped[Array, "..."], axis: int, left: int, right: int) -> Shaped[Array, "..."]:
    """Put the blocks before and after each block around it, zeros at the ends: [..., W, C, ...] keeps W blocks.

    Args:
      axis: of the positions in a block, counted from the end; that of the blocks is before it.
      left: how many blocks before.
      right: how many after.

    >>> with_neighbours(jnp.array([[1, 2], [3, 4]]), -1, 1, 0).tolist()
    [[0, 0, 1, 2], [1, 2, 3, 4]]
    """
    at = blocks.ndim + axis - 1
    count = blocks.shape[at]
    padded = jnp.pad(blocks, [(left, right) if each == at else (0, 0) for each in range(blocks.ndim)])
    parts = [padded[(slice(None),) * at + (slice(turn, turn + count),)] for turn in range(left + 1 + right)]
    return jnp.concatenate(parts, axis=axis)
