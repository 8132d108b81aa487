"""Deformable attention: places are read exactly, points between them linearly, and transforms change nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops.deformable import deformable_attention, sample_points

SIZES = ((3, 5), (2, 1), (4, 4))
PLACES = sum(rows * columns for rows, columns in SIZES)


def drawn(*lead, T=7, N=2, H=3, P=4, spread=1.4):
    """Draw values, points of which some lie beyond the edges, and weights."""
    keys = jax.random.split(jax.random.key(0), 3)
    values = jax.random.normal(keys[0], (*lead, PLACES, N, H))
    points = spread * jax.random.uniform(keys[1], (*lead, T, N, len(SIZES), P, 2)) - 0.2
    weights = jax.nn.softmax(jax.random.normal(keys[2], (*lead, T, N, len(SIZES) * P)))
    return values, points, weights.reshape(*lead, T, N, len(SIZES), P)


def attend(values, points, weights):
    return deformable_attention(values, SIZES, points, weights)


def test_the_middle_of_a_place_has_its_value():
    grid = jax.random.normal(jax.random.key(1), (4, 6, 3))
    y, x = jnp.meshgrid((jnp.arange(4) + 0.5) / 4, (jnp.arange(6) + 0.5) / 6, indexing="ij")
    found = sample_points(grid, jnp.stack([x, y], -1).reshape(-1, 2))
    np.testing.assert_allclose(found, grid.reshape(-1, 3), atol=1e-5)


def test_a_linear_grid_is_read_as_such_between_its_places():
    y, x = jnp.meshgrid(jnp.arange(5.0), jnp.arange(7.0), indexing="ij")
    grid = (2 * x - 3 * y + 1)[..., None]
    places = jax.random.uniform(jax.random.key(2), (50, 2)) * jnp.array([6.0, 4.0])
    found = sample_points(grid, (places + 0.5) / jnp.array([7.0, 5.0]))
    np.testing.assert_allclose(found[:, 0], 2 * places[:, 0] - 3 * places[:, 1] + 1, atol=1e-4)


def test_beyond_the_edges_there_is_nothing():
    far = jnp.array([[-0.5, 0.5], [1.5, 0.5], [0.5, -3.0], [9.0, 9.0]])
    np.testing.assert_array_equal(sample_points(jnp.ones((3, 4, 2)), far), 0)
    corner = sample_points(jnp.ones((3, 4, 1)), jnp.array([[0.0, 0.0], [1.0, 0.5]]))
    np.testing.assert_allclose(corner[:, 0], [0.25, 0.5], atol=1e-6)


@pytest.mark.rotates
def test_each_query_by_itself():
    """Points of another query change nothing."""
    values, points, weights = drawn()
    whole, one = attend(values, points, weights), attend(values, points[3:4], weights[3:4])
    np.testing.assert_allclose(whole[3:4], one, atol=1e-6)
    assert np.abs(whole[3] - attend(values, points + 0.1, weights)[3]).max() > 1e-3


@pytest.mark.rotates
def test_vmap_is_the_batch_and_jit_is_eager():
    given = drawn(2, 3)
    expected = attend(*given)
    assert expected.shape == (2, 3, 7, 2, 3)
    np.testing.assert_allclose(jax.vmap(jax.vmap(attend))(*given), expected, atol=1e-6)
    np.testing.assert_allclose(jax.jit(attend)(*given), expected, atol=1e-6)


@pytest.mark.rotates
def test_gradients_are_slopes():
    """Within a cell of the grid, by small steps in double precision's stead: the function is linear along x there."""
    values, points, weights = drawn()
    points = jnp.floor(points * 8) / 8 + 0.061  # away from where cells meet

    def loss(values, points, weights):
        return jnp.sum(jnp.sin(jnp.arange(3.0)) * attend(values, points, weights))

    slopes = jax.grad(loss, argnums=(0, 1, 2))(values, points, weights)
    for number, slope in enumerate(slopes):
        assert np.isfinite(slope).all()
        step = jax.random.normal(jax.random.key(number), slope.shape)
        step = 1e-3 * step / jnp.abs(step).max()
        sides = []
        for sign in (1, -1):
            given = [values, points, weights]
            given[number] = given[number] + sign * step
            sides.append(loss(*given))
        np.testing.assert_allclose((sides[0] - sides[1]) / 2, jnp.sum(slope * step), rtol=2e-2, atol=2e-5)


def test_half_precision_is_summed_in_single():
    values, points, weights = drawn()
    found = attend(values.astype(jnp.bfloat16), points, weights.astype(jnp.bfloat16))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(jnp.float32), attend(values, points, weights), atol=0.03)


@pytest.mark.parametrize(
    ("sizes", "rule"),
    [
        (((3, 5), (2, 2), (4, 4)), r"maps of 3×5, 2×2, 4×4, S=35, and points of each of them, got S=33"),
        (((3, 11),), "got S=33 and points of 3 maps"),
    ],
)
def test_other_maps_are_refused(sizes, rule):
    values, points, weights = drawn()
    with pytest.raises(ValueError, match=rule):
        deformable_attention(values, sizes, points, weights)
