"""Attention weights of windows, laid out over the grid that they were cut from."""

import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.models.vision.window_attention import join_windows, over_grid, split_windows
from flax_transformer.nn import Grid


@pytest.mark.parametrize(("grid", "size", "shift"), [((6, 6), 3, 1), ((6, 9), 3, 0), ((5, 7), 3, 1), ((2, 7), 3, 1)])
def test_weights_laid_out_over_the_grid_do_what_those_of_the_windows_do(grid, size, shift):
    random, grid = np.random.default_rng(0), Grid(*grid)
    fixed, side = min(grid) <= size, min(size, *grid)
    whole = Grid(*(length + -length % side for length in grid))
    windows = whole.rows * whole.columns // side**2
    weights = random.random((windows, 2, side**2, side**2))
    values = random.random((*grid, 4))
    padded = np.pad(values, [(0, new - old) for new, old in zip(whole, grid, strict=True)] + [(0, 0)])
    cut = split_windows(padded if fixed else np.roll(padded, (-shift, -shift), (0, 1)), side)
    joined = join_windows(jnp.asarray(np.einsum("wnst,wtd->nwsd", weights, cut)), whole)
    joined = joined if fixed else jnp.roll(joined, (shift, shift), (-3, -2))
    theirs = joined[:, : grid.rows, : grid.columns].reshape(2, -1, 4)
    ours = over_grid(weights, shift, grid, size) @ values.reshape(-1, 4)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
