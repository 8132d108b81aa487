"""Blocks on a grid: windows and what keeps them apart, biases for distances, keys of several patches."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.vision.spatial_reduction import SpatialReductionConfig
from flax_transformer.models.vision.window_attention import APART, WindowConfig, apart, join_windows, split_windows
from flax_transformer.nn import (
    AttentionConfig,
    Grid,
    GridAttentionConfig,
    GridBias,
    GridBiasConfig,
    GridBlockConfig,
    PatchConfig,
    apply_stack,
    init_stack,
    transformer_block,
)

D = 8
LIKE = transformer_block(embed=D, heads=2, inner=12, norm_position="pre", init_std=0.5)


def window(size=3):
    made = WindowConfig(attention=LIKE.attention, size=size).build(nnx.Rngs(1))
    made.relative.table[...] = jax.random.normal(jax.random.key(2), made.relative.table.shape)
    return made


def grid_states(grid, rows=(2,)):
    return jax.random.normal(jax.random.key(3), (*rows, grid.rows * grid.columns, D))


def seen(layer, grid, **options):
    """Say which positions [T, S] a query's output depends on."""
    x = grid_states(grid, ())
    slopes = jax.jacfwd(lambda x: layer(x, grid=grid, **options).sum(-1))(x)
    return np.abs(slopes).sum(-1) > 1e-6


@pytest.mark.rotates
def test_a_window_sees_itself_and_nothing_else():
    grid = Grid(6, 9)
    rows, columns = np.indices(grid)
    own = (rows // 3 * 3 + columns // 3).ravel()
    np.testing.assert_array_equal(seen(window(), grid), own[:, None] == own)


@pytest.mark.rotates
def test_a_shifted_window_lies_across_two_and_is_cut_at_the_edge():
    grid = Grid(6, 9)
    rows, columns = ((place + 2) // 3 for place in np.indices(grid))
    own = (10 * rows + columns).ravel()
    np.testing.assert_array_equal(seen(window(), grid, shift=jnp.int32(1)), own[:, None] == own)


@pytest.mark.rotates
def test_a_grid_as_small_as_a_window_is_not_shifted():
    layer, grid = window(4), Grid(4, 6)
    np.testing.assert_array_equal(layer(grid_states(grid), grid=grid, shift=2), layer(grid_states(grid), grid=grid))
    assert seen(layer, Grid(2, 3)).reshape(2, 3, 2, 3)[:, :2, :, :2].all()


def test_what_keeps_windows_apart_is_the_paper_s():
    np.testing.assert_array_equal(apart(Grid(4, 4), 2, 0), np.zeros((4, 1, 4, 4)))
    last = apart(Grid(4, 4), 2, 1)[-1, 0]
    np.testing.assert_array_equal(last, np.where(np.eye(4) == 1, 0, APART))


def test_windows_are_put_together_as_they_were_cut():
    x = jax.random.normal(jax.random.key(0), (2, 6, 9, 4))
    np.testing.assert_array_equal(join_windows(split_windows(x, 3), Grid(6, 9)), x)


@pytest.mark.parametrize("token", [False, True])
def test_a_bias_depends_on_the_distance_alone(token):
    bias = GridBias(GridBiasConfig(grid=(3, 4), heads=2, token=token), rngs=nnx.Rngs(0))
    found = np.asarray(bias(Grid(3, 4)))[:, token:, token:].reshape(2, 3, 4, 3, 4)
    np.testing.assert_array_equal(found[:, :2, 1:, :2, 1:], found[:, 1:, :3, 1:, :3])
    assert len(np.unique(found[0])) == 5 * 7
    small = np.asarray(bias(Grid(2, 3)))[:, token:, token:].reshape(2, 2, 3, 2, 3)
    np.testing.assert_array_equal(small, found[:, :2, :3, :2, :3])
    np.testing.assert_array_equal(bias.resampled(Grid(3, 4)), bias(Grid(3, 4)))
    if token:
        table, whole = bias.table[...], bias(Grid(3, 4))
        np.testing.assert_array_equal(whole[:, 0, 1:], np.broadcast_to(table[-3][:, None], (2, 12)))
        np.testing.assert_array_equal(whole[:, 1:, 0], np.broadcast_to(table[-2][:, None], (2, 12)))
        np.testing.assert_array_equal(whole[:, 0, 0], table[-1])


@pytest.mark.slow
def test_keys_are_of_several_patches():
    patches = PatchConfig(embed=D, image=(4, 6), patch=(2, 2), channels=D)
    layer = SpatialReductionConfig(attention=LIKE.attention, patches=patches).build(nnx.Rngs(0))
    assert layer(grid_states(Grid(5, 7)), grid=Grid(5, 7)).shape == (2, 35, D)
    ignored = seen(layer, Grid(5, 7)).reshape(35, 5, 7)[0]
    assert ignored[:4, :6].all()
    assert not ignored[4].any()
    assert not ignored[:, 6].any()


@pytest.mark.parametrize(
    "attention",
    [
        WindowConfig(attention=LIKE.attention, size=2),
        GridAttentionConfig(attention=LIKE.attention, relative=GridBiasConfig(grid=(4, 4), heads=2)),
        SpatialReductionConfig(
            attention=LIKE.attention, patches=PatchConfig(embed=D, image=(4, 4), patch=(2, 2), channels=D)
        ),
    ],
    ids=["window", "biases", "reduced"],
)
@pytest.mark.slow
def test_a_stack_of_such_blocks_takes_a_grid(attention):
    block = GridBlockConfig(attention=attention, feedforward=LIKE.feedforward, residual=LIKE.residual)
    blocks = init_stack(block.build, 2, key=jax.random.key(0))
    grid = Grid(4, 3)
    x = grid_states(grid, (2, 3))
    y = apply_stack(blocks, x, grid=grid)
    assert y.shape == x.shape
    np.testing.assert_allclose(y, jax.vmap(jax.vmap(lambda x: apply_stack(blocks, x, grid=grid)))(x), atol=1e-5)
    dropped = apply_stack(blocks, x, grid=grid, drop_path=0.5, key=jax.random.key(1))
    assert np.abs(dropped - y).max() > 1e-3


def test_a_bias_of_some_projections_is_theirs_alone():
    layer = replace(LIKE.attention, bias=("query", "value")).build(nnx.Rngs(0))
    assert [getattr(layer, name).bias is not None for name in ("query", "key", "value", "out")] == [
        True, False, True, True,
    ]  # fmt: skip
    x = jax.random.normal(jax.random.key(0), (2, 5, D))
    np.testing.assert_allclose(layer(x), layer.for_decoding()(x), atol=1e-6)


@pytest.mark.rotates
def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="T must be the places of a grid of 3×4, got 11"):
        window()(jnp.zeros((2, 11, D)), grid=Grid(3, 4))
    with pytest.raises(ValueError, match="a grid must be within 3×3, got 4×2"):
        window().relative(Grid(4, 2))
    with pytest.raises(ValueError, match="biases must be of N=2 heads, got 3"):
        GridAttentionConfig(attention=LIKE.attention, relative=GridBiasConfig(grid=(2, 2), heads=3))
    with pytest.raises(
        ValueError, match="attention must be a config of a sublayer, got int, which has no embed, takes, build"
    ):
        GridBlockConfig(attention=3, feedforward=LIKE.feedforward, residual=LIKE.residual)
    with pytest.raises(ValueError, match="biases are of query, key, value, got out"):
        AttentionConfig(embed=D, heads=2, bias=("out",))
