"""The residual: the places of its norm, LayerScale, rows that are dropped, around any sublayer."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from flax_transformer.nn import (
    Block,
    PerLayer,
    Residual,
    ResidualConfig,
    Trunk,
    TrunkConfig,
    apply_stack,
    init_stack,
    transformer_block,
    unstack,
    with_fields,
)
from flax_transformer.ops import drop_path
from flax_transformer.ops.row_random import rows_of
from tests.shares import only

D = 8
PLAIN = ResidualConfig(embed=D)
BLOCK = transformer_block(embed=D, heads=2, inner=12)


def residual(**fields):
    """Make a residual whose norm and factors are not the neutral ones they start as."""
    made = Residual(replace(PLAIN, **fields), rngs=nnx.Rngs(0))
    leaves, treedef = jax.tree.flatten(made)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    return treedef.unflatten([a + 0.3 * jax.random.normal(k, a.shape) for a, k in zip(leaves, keys, strict=True)])


def normal(*shape, seed=2):
    return jax.random.normal(jax.random.key(seed), shape)


def double(x, *, key=None):
    return 2 * x


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_a_norm_is_where_it_is_said_to_be(norm):
    x = normal(3, 5, D)
    for position, by_hand in (
        ("pre", lambda norm: x + 2 * norm(x)),
        ("post", lambda norm: norm(x + 2 * x)),
        ("output", lambda norm: x + norm(2 * x)),
    ):
        part = residual(norm_position=position, norm=norm)
        np.testing.assert_allclose(part(x, double), by_hand(part.norm), rtol=1e-5, atol=1e-5)


def test_a_norm_may_be_a_function():
    x = normal(3, 5, D)
    found = Residual(replace(PLAIN, norm=nnx.RMSNorm), rngs=nnx.Rngs(0))(x, double)
    np.testing.assert_array_equal(found, Residual(replace(PLAIN, norm="rms"), rngs=nnx.Rngs(0))(x, double))


def test_layer_scale_multiplies_channels_of_the_output():
    x = normal(3, 5, D)
    part = residual(norm_position="pre", layer_scale=0.1)
    np.testing.assert_allclose(part(x, double), x + 2 * part.norm(x) * part.layer_scale[...], rtol=1e-5, atol=1e-5)
    fresh = Residual(replace(PLAIN, layer_scale=0.25), rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(fresh.layer_scale[...], jnp.full(D, 0.25))


@pytest.mark.rotates
@given(st.floats(0.05, 0.9), st.integers(0, 5))
def test_a_dropped_row_is_the_input_and_another_is_scaled(rate, seed):
    x = normal(64, 5, D)
    found = residual(norm_position="pre", drop_path=rate)(x, double, key=jax.random.key(seed))
    kept = x + 2 * residual(norm_position="pre").norm(x) / (1 - rate)
    passed = jnp.isclose(found, x, atol=1e-6).all((1, 2))
    whole = jnp.isclose(found, kept, rtol=1e-4, atol=1e-4).all((1, 2))
    assert (passed ^ whole).all()
    assert abs(passed.mean() - rate) < 5 * (rate * (1 - rate) / 64) ** 0.5


def test_without_a_key_no_row_is_dropped():
    x = normal(4, 5, D)
    np.testing.assert_array_equal(residual(drop_path=0.9)(x, double), residual()(x, double))


def test_the_mean_of_what_is_dropped_stays_and_rows_are_dropped_as_one():
    x = jnp.ones((20_000, 2, 3))
    y = drop_path(x, 0.3, jax.random.key(0))
    assert abs(float(y.mean()) - 1) < 0.02
    assert (y.min((1, 2)) == y.max((1, 2))).all()


def test_a_rate_may_be_traced_and_no_other_draw_depends_on_it():
    x, key = normal(16, 5, D), jax.random.key(3)
    traced = jax.jit(drop_path)(x, jnp.float32(0.4), key)
    np.testing.assert_allclose(traced, drop_path(x, 0.4, key), rtol=1e-6)
    part = residual(dropout=0.5, norm_position="pre")
    np.testing.assert_array_equal(part(x, double, key=key), part(x, double, key=key, drop_path=0.0))


def test_part_of_a_batch_drops_the_rows_that_the_whole_drops():
    x, key, rows = normal(8, 5, D), jax.random.key(4), jnp.array([6, 1, 3])
    with rows_of(rows, 8):
        part = drop_path(x[rows], 0.5, key)
    np.testing.assert_array_equal(part, drop_path(x, 0.5, key)[rows])


@pytest.mark.parametrize("rate", [1.0, -0.1, float("nan")])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(ValueError, match=r"a drop-path rate must lie in \[0, 1\), got"):
        drop_path(normal(2, 3, D), rate, jax.random.key(0))
    with pytest.raises(ValueError, match=r"drop_path must be in \[0, 1\), got"):
        replace(PLAIN, drop_path=rate)
    with pytest.raises(ValueError, match=r"drop_path must be in \[0, 1\), got"):
        TrunkConfig(block=BLOCK, drop_path=rate)


@pytest.mark.rotates
@pytest.mark.parametrize("apart", only([False, True], False))
def test_each_layer_of_a_stack_has_its_own_rate(apart):
    """Where the rate is 0 nothing is dropped, and beside it nearly everything is."""
    blocks = init_stack(BLOCK.build, 2, key=jax.random.key(0))
    blocks = unstack(blocks) if apart else blocks
    x, key = normal(32, 3, D), jax.random.key(5)
    rates = jnp.array([0.0, 0.999])
    found = apply_stack(blocks, x, drop_path=PerLayer(rates), key=key)
    first = apply_stack(init_stack(BLOCK.build, 2, key=jax.random.key(0)), x, drop_path=PerLayer(0 * rates), key=key)
    assert not jnp.allclose(found, first)
    np.testing.assert_array_equal(apply_stack(blocks, x, drop_path=PerLayer(0 * rates), key=key), first)
    np.testing.assert_array_equal(apply_stack(blocks, x, key=key), first)


@pytest.mark.rotates
def test_rates_grow_linearly_with_depth():
    config = TrunkConfig(block=BLOCK, depth=3, drop_path=0.4)
    trunk, x, key = Trunk(config, rngs=nnx.Rngs(0)), normal(16, 3, D), jax.random.key(6)
    expected = apply_stack(trunk.blocks, x, drop_path=PerLayer(jnp.array([0.0, 0.2, 0.4])), key=key)
    np.testing.assert_allclose(trunk(x, key=key), expected, rtol=1e-5, atol=1e-6)
    assert not jnp.allclose(trunk(x, key=key), apply_stack(trunk.blocks, x, key=key))
    np.testing.assert_array_equal(trunk(x), apply_stack(trunk.blocks, x))


@pytest.mark.slow
def test_every_parameter_of_a_scaled_block_learns():
    config = with_fields(BLOCK, layer_scale=1e-4, norm_position="pre", drop_path=0.2)
    grads = jax.grad(lambda b: (b(normal(2, 5, D), key=jax.random.key(0)) ** 2).sum())(Block(config, rngs=nnx.Rngs(0)))
    assert {path for path, leaf in nnx.to_flat_state(nnx.state(grads)) if not jnp.abs(leaf[...]).max() > 0} <= {
        ("attention", "key", "bias")
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            dict(norm="batch"),
            "norm must be one of layer, layer_without_bias, rms, zero_centered_rms or a function, got 'batch'",
        ),
        (dict(embed=0), "embed must be at least 1, got 0"),
        (dict(norm_eps=-1.0), "norm_eps must be at least 0, got -1"),
    ],
)
def test_a_residual_says_what_it_takes(change, message):
    with pytest.raises(ValueError, match=message):
        replace(PLAIN, **change)


def test_parts_of_a_block_have_one_width_and_names_that_exist():
    with pytest.raises(ValueError, match="one model width, got attention=8, feedforward=8, residual=4"):
        replace(BLOCK, residual=replace(BLOCK.residual, embed=4))
    with pytest.raises(ValueError, match=r"no part of a block has iner; they have .*'inner'"):
        transformer_block(embed=8, heads=2, iner=12)
    with pytest.raises(ValueError, match="TransformerBlockConfig has no field iner, at any depth; nearest: inner"):
        with_fields(BLOCK, iner=12)
