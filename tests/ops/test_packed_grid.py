"""Where patches and images are: against loops written as they are told, and against transformers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops.packed_grid import interleaved_positions, packed_places

ROWS = [
    [[(1, 2, 4), (1, 4, 2)], [(1, 6, 6), (0, 0, 0)]],
    [[(1, 4, 4), (1, 2, 2), (1, 2, 8)], [(0, 0, 0)] * 3],
    [[(3, 2, 4)], [(1, 4, 6)]],
]
"""Grids of the images of rows, of which the second may have fewer."""


def looped_places(grids, merge):
    places, frames, frame = [], [], 0
    for times, rows, columns in grids:
        for _ in range(times):
            for y in range(0, rows, merge):
                for x in range(0, columns, merge):
                    places += [(y + i, x + j) for i in range(merge) for j in range(merge)]
            frames += [frame] * (rows * columns)
            frame += 1
    return places, frames


def looped_positions(pieces, merge):
    """Return the positions of a row, of which a piece is a number of text tokens or a grid."""
    found, at = [], 0
    for piece in pieces:
        if isinstance(piece, int):
            found += [(at + i,) * 3 for i in range(piece)]
            at += piece
        else:
            times, rows, columns = piece[0], piece[1] // merge, piece[2] // merge
            found += [(at + t, at + y, at + x) for t in range(times) for y in range(rows) for x in range(columns)]
            at += max(rows, columns)
    return found


@pytest.mark.parametrize("merge", [1, 2])
@pytest.mark.parametrize("rows", ROWS)
def test_places_are_those_of_a_loop(rows, merge):
    most = max(sum(np.prod(grid) for grid in grids) for grids in rows) + 4
    places, frames = jax.jit(packed_places, static_argnums=(1, 2))(jnp.array(rows), most, merge)
    for row, grids in enumerate(rows):
        expected, of = looped_places(grids, merge)
        assert frames[row].tolist() == of + [-1] * (most - len(of))
        assert places[row, : len(of)].tolist() == [list(each) for each in expected]


def laid(pieces, before, length, merge):
    """Return which tokens are images' and which are no padding, of a row of pieces with padding before it."""
    row = [kind for piece in pieces for kind in _kinds(piece, merge)]
    after = length - before - len(row)
    visual = [False] * before + row + [False] * after
    return visual, [False] * before + [True] * len(row) + [False] * after


def _kinds(piece, merge):
    return [False] * piece if isinstance(piece, int) else [True] * int(np.prod(piece) // merge**2)


PIECES = [
    ([2, (1, 2, 4), 3, (1, 4, 2), 1], 3),
    ([(1, 6, 6), 4], 0),
    ([5], 2),
    ([1, (1, 4, 4), (1, 2, 2), 2], 1),  # without a text between
]


@pytest.mark.parametrize("merge", [1, 2])
def test_positions_are_those_of_a_loop(merge):
    length = max(before + len(laid(pieces, 0, 99, merge)[0]) for pieces, before in PIECES)
    rows = [laid(pieces, before, length, merge) for pieces, before in PIECES]
    grids = [[piece for piece in pieces if not isinstance(piece, int)] for pieces, _ in PIECES]
    grids = jnp.array([row + [(0, 0, 0)] * (2 - len(row)) for row in grids])
    visual, seen = (jnp.array([row[which] for row in rows]) for which in range(2))
    found = jax.jit(interleaved_positions, static_argnums=2)(visual, grids, merge, seen)
    for row, (pieces, before) in enumerate(PIECES):
        expected = looped_positions(pieces, merge)
        assert found[row, before : before + len(expected)].tolist() == [list(each) for each in expected]
        assert not np.asarray(found[row])[~np.asarray(seen[row])].any()


def test_without_images_positions_count_tokens():
    seen = jnp.array([[False, False, True, True, True], [True] * 5])
    found = interleaved_positions(jnp.zeros((2, 5), bool), jnp.zeros((2, 1, 3), int), 2, seen)
    np.testing.assert_array_equal(found[..., 0], [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]])
    assert (found == found[..., :1]).all()


@pytest.mark.parity
@pytest.mark.parametrize("rows", ROWS)
def test_places_are_those_of_transformers(rows):
    torch = pytest.importorskip("torch")
    vision_utils = pytest.importorskip("transformers.vision_utils")
    for grids in rows:
        real = [grid for grid in grids if grid[0]]
        if real:
            expected = vision_utils.get_vision_position_ids(torch.tensor(real), 2).numpy()
            lengths = np.diff(vision_utils.get_vision_cu_seqlens(torch.tensor(real)).numpy())
            places, frames = packed_places(jnp.array(grids), len(expected), 2)
            np.testing.assert_array_equal(places, expected)
            np.testing.assert_array_equal(frames, np.repeat(np.arange(len(lengths)), lengths))
