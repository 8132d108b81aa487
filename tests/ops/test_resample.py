import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops.resample import bicubic, bilinear, resample, resample_positions, resample_relative_bias


@pytest.mark.parametrize("kernel", [bicubic, bilinear])
@pytest.mark.parametrize(
    ("old", "new", "ratio"), [(7, 7, None), (5, 13, None), (14, 3, None), (1, 6, None), (5, 8, 1.62)]
)
def test_weights_add_up_to_one(kernel, old, new, ratio):
    np.testing.assert_allclose(kernel(old, new, ratio).sum(1), 1, atol=1e-6)


def test_linear_interpolation_keeps_a_straight_line_straight_and_the_edges_flat():
    line = jnp.arange(4.0)[None, :, None]
    new = resample(line, (1, 12), kernel=bilinear)[0, :, 0]
    np.testing.assert_allclose(new, np.clip((np.arange(12) + 0.5) / 3 - 0.5, 0, 3), atol=1e-6)


def test_cubic_convolution_overshoots_an_edge_by_as_much_as_three_quarters_make_it():
    edge = jnp.array([0.0, 0.0, 1.0, 1.0])[None, :, None]
    by_hand = [0, -0.03515625, -0.10546875, 0.2265625, 0.7734375, 1.10546875, 1.03515625, 1]
    np.testing.assert_allclose(resample(edge, (1, 8))[0, :, 0], by_hand, atol=1e-6)


def test_nothing_is_smoothed_before_a_grid_is_made_smaller():
    stripes = jnp.tile(jnp.array([0.0, 1.0, 0.0]), 5)[None, :, None]
    for kernel in (bicubic, bilinear):
        # Weights that are summed in float32, in whatever order the CPU's program has them.
        np.testing.assert_allclose(resample(stripes, (1, 5), kernel=kernel)[0, :, 0], jnp.ones(5), atol=1e-6)


def test_the_same_size_is_the_same_table_bit_for_bit():
    table = jax.random.normal(jax.random.key(0), (1, 26, 3))
    np.testing.assert_array_equal(resample_positions(table, (5, 5)), table)
    np.testing.assert_array_equal(resample_relative_bias(table[0, :25], (3, 3)), table[0, :25])


def test_jit_vmap_and_the_gradient_are_those_of_a_linear_map():
    grid = jax.random.normal(jax.random.key(0), (3, 4, 5, 2))
    every = jax.jit(resample, static_argnums=1)(grid, (7, 3))
    np.testing.assert_allclose(jax.vmap(lambda one: resample(one, (7, 3)))(grid), every, atol=1e-6)
    gradient = jax.grad(lambda grid: resample(grid, (7, 3)).sum())(grid)
    down, across = bicubic(4, 7).sum(0), bicubic(5, 3).sum(0)
    np.testing.assert_allclose(gradient[0, :, :, 0], np.outer(down, across), atol=1e-5)


def test_short_floats_are_rounded_once():
    grid = jax.random.normal(jax.random.key(0), (4, 4, 2)).astype(jnp.bfloat16)
    exact = resample(grid.astype(jnp.float32), (9, 6)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(resample(grid, (9, 6)), exact)


def test_tokens_that_are_no_patches_stay_at_their_end():
    table = jax.random.normal(jax.random.key(0), (12, 3))
    np.testing.assert_array_equal(resample_positions(table[:11], (5, 2), tokens=2)[:2], table[:2])
    assert resample_positions(table, (5, 2), tokens=0, grid=(3, 4)).shape == (10, 3)
    bias = resample_relative_bias(table, (4, 3), tokens=3)
    np.testing.assert_array_equal(bias[-3:], table[-3:])
    assert bias.shape == (7 * 5 + 3, 3)


def test_biases_of_opposite_distances_change_places_before_or_after_alike():
    table = jax.random.normal(jax.random.key(0), (25, 2))
    new = resample_relative_bias(table, (4, 6), kernel=bilinear)
    np.testing.assert_allclose(resample_relative_bias(table[::-1], (4, 6), kernel=bilinear), new[::-1], atol=1e-6)
    vertical = jnp.repeat(jnp.arange(5.0), 5)[:, None]
    rows = np.asarray(resample_relative_bias(vertical, (3, 6))).reshape(5, 11)
    np.testing.assert_allclose(rows, np.arange(5.0)[:, None] + np.zeros(11), atol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: resample(jnp.ones((2, 2, 1)), (0, 3)), r"at least one point each way, got \(2, 2\) to \(0, 3\)"),
        (lambda: resample_positions(jnp.ones((6, 1)), (2, 2), tokens=0), "0 and a square of patches, got 6"),
        (lambda: resample_positions(jnp.ones((5, 1)), (2, 2), grid=(3, 2)), "1 and 3 × 2 of patches, got 5"),
        (lambda: resample_positions(jnp.ones((1, 1)), (2, 2), tokens=2), "2 and a square of patches, got 1"),
        (lambda: resample_relative_bias(jnp.ones((16, 1)), (2, 2)), "a square window and 0, got 16"),
        (lambda: resample_relative_bias(jnp.ones((9, 1)), (2, 2), window=(2, 3)), "a window of 2 × 3 and 0, got 9"),
    ],
)
def test_a_table_that_is_no_grid_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
