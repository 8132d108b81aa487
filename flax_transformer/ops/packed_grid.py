"""Telling a Transformer where patches of several images in a row are, and where the images are among tokens.

A grid is an image as times, rows and columns of patches; of a row that has fewer images than others the last grids are
0. An encoder merges squares of `merge` × `merge` patches into one output each, and patches come square by square.

Axes: B rows, I images of a row, P patches of a row, T tokens.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def packed_places(
    grids: Int[Array, "*B I 3"], patches: int, merge: int
) -> tuple[Int[Array, "*B P 2"], Int[Array, "*B P"]]:
    """Return row and column of each patch in its image, and the number of the frame it is of, counted through the row.

    What comes after the last image is padding, of frame −1.

    Args:
      patches: P.
      merge: patches on each side of a square.

    >>> places, frames = packed_places(jnp.array([[1, 2, 4], [1, 2, 2]]), 14, 2)
    >>> places[:8].tolist(), frames.tolist()
    ([[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3]], [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, -1, -1])
    """
    which, number = _count(jnp.arange(patches), jnp.prod(grids, axis=-1))
    rows, columns = (_pick(grids[..., axis], which, 1) for axis in (1, 2))
    frame, number = jnp.divmod(number, rows * columns)
    square, inside = jnp.divmod(number, merge * merge)
    down, across = jnp.divmod(square, jnp.maximum(columns // merge, 1))
    places = jnp.stack([down * merge + inside // merge, across * merge + inside % merge], axis=-1)
    before = jnp.cumsum(grids[..., 0], axis=-1) - grids[..., 0]
    frames = jnp.where(which < grids.shape[-2], _pick(before, which, 0) + frame, -1)
    return jnp.where(frames[..., None] < 0, 0, places), frames


def packed_windows(places: Int[Array, "*B P 2"], frames: Int[Array, "*B P"], side: int) -> Int[Array, "*B P"]:
    """Return a number for the window that each patch is in, another one for each window of each frame; −1 of padding.

    Windows begin at the upper left of an image; those at its other edges may be smaller.

    Args:
      places, frames: as `packed_places` gives them.
      side: patches on each side of a window.

    >>> packed_windows(*packed_places(jnp.array([[1, 2, 4]]), 9, 1), 2).tolist()
    [0, 0, 1, 1, 0, 0, 1, 1, -1]
    """
    down, across = places[..., 0] // side, places[..., 1] // side
    rows, columns = (jnp.max(each, axis=-1, keepdims=True) + 1 for each in (down, across))
    return jnp.where(frames < 0, -1, (frames * rows + down) * columns + across)


def interleaved_positions(
    visual: Bool[Array, "*B T"], grids: Int[Array, "*B I 3"], merge: int, seen: Bool[Array, "*B T"] | None = None
) -> Int[Array, "*B T 3"]:
    """Return the position of each token as time, row and column, of images among texts.

    The ids of a text's token agree, and grow by 1 from token to token. An image's outputs have their own time, row and
    column, counted from the position at which the image begins; the text after it goes on as many later as the image
    has outputs on its longer side (Wang et al. 2024, https://arxiv.org/abs/2409.12191, as `get_rope_index` of
    `transformers` has it). Padding is not counted, and has position 0.

    Args:
      visual: which tokens stand for outputs of images; they are as many as `grids` say.
      merge: patches on each side of a square that is one output.
      seen: which tokens are no padding; by default all.

    >>> visual = jnp.array([False, True, True, False])
    >>> interleaved_positions(visual, jnp.array([[1, 2, 4]]), 2).tolist()
    [[0, 0, 0], [1, 1, 1], [1, 1, 2], [3, 3, 3]]
    """
    seen = jnp.ones_like(visual) if seen is None else seen
    visual = visual & seen
    rows, columns = grids[..., 1] // merge, grids[..., 2] // merge
    texts = jnp.cumsum(seen & ~visual, axis=-1) - (seen & ~visual)
    which, number = _count(jnp.cumsum(visual, axis=-1) - visual, grids[..., 0] * rows * columns)
    spans = jnp.maximum(rows, columns)
    begin = texts + _pick(jnp.cumsum(spans, axis=-1) - spans, which, jnp.sum(spans, axis=-1, keepdims=True))
    high, wide = (jnp.maximum(_pick(side, which, 1), 1) for side in (rows, columns))
    inside = jnp.stack([number // (high * wide), number // wide % high, number % wide], axis=-1)
    positions = begin[..., None] + jnp.where(visual[..., None], inside, 0)
    return jnp.where(seen[..., None], positions, 0).astype(jnp.int32)


def _count(numbers: Int[Array, "*#B n"], sizes: Int[Array, "*B I"]) -> tuple[Int[Array, "*B n"], Int[Array, "*B n"]]:
    """Return of which of several parts in a row each number is, I after the last, and which it is in it."""
    ends = jnp.cumsum(sizes, axis=-1)
    which = jnp.sum(ends[..., None, :] <= numbers[..., None], axis=-1)
    return which, numbers - _pick(ends - sizes, which, ends[..., -1:])


def _pick(values: Int[Array, "*B I"], which: Int[Array, "*B n"], after: Array | int) -> Int[Array, "*B n"]:
    """Return the value of the part that each is of; of what comes after the last part, `after`."""
    count = values.shape[-1]
    found = jnp.take_along_axis(values, jnp.minimum(which, count - 1), axis=-1)
    return jnp.where(which < count, found, after)
