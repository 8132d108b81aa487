import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from flax_transformer.ops import Dropout, dropout, keep_mask

KEY = jax.random.key(3)


def test_no_key_or_no_rate_changes_nothing():
    x = jnp.ones((3, 5))
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, KEY) is x


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_rate_and_mean(rate, impl):
    key = jax.random.key(3, impl=impl)
    n = 1_000_000
    kept = keep_mask(key, (1000, 1000), rate)
    assert abs(float(kept.mean()) - (1 - rate)) < 4 * (rate * (1 - rate) / n) ** 0.5 + 2**-16
    y = dropout(jnp.ones((1000, 1000)), rate, key)
    assert abs(float(y.mean()) - 1) < 4 * (rate / (1 - rate) / n) ** 0.5


def test_bits_are_independent_along_every_axis():
    kept = np.array(keep_mask(KEY, (64, 32, 128), 0.3)) - 0.7
    for axis in range(3):
        for lag in (1, 2, 32):
            if lag < kept.shape[axis]:
                a, b = np.split(kept, [lag], axis)[1], np.split(kept, [kept.shape[axis] - lag], axis)[0]
                assert abs((a * b).mean() / 0.21) < 4 / a.size**0.5
    assert abs(kept.mean((0, 1)).std() * (64 * 32 / 0.21) ** 0.5 - 1) < 0.3


def test_random_words_equal_jax_threefry_at_its_number_of_rounds(monkeypatch):
    from jax.extend.random import threefry_2x32

    module = importlib.import_module("flax_transformer.ops.dropout")
    monkeypatch.setattr(module, "_ROUNDS", 20)
    first, second = module._words(KEY, (6, 5))
    counts = jnp.concatenate([jnp.arange(30, dtype=jnp.uint32), jnp.zeros(30, jnp.uint32)])
    expected = threefry_2x32(jax.random.key_data(KEY), counts)
    np.testing.assert_array_equal(jnp.concatenate([first.ravel(), second.ravel()]), expected)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4)])
def test_any_shape_and_the_key_decide(shape):
    kept = keep_mask(KEY, shape, 0.5)
    assert kept.shape == shape
    np.testing.assert_array_equal(kept, keep_mask(KEY, shape, 0.5))
    np.testing.assert_array_equal(kept, jax.jit(lambda k: keep_mask(k, shape, 0.5))(KEY))


def test_different_keys_differ():
    draws = [keep_mask(key, (1000,), 0.5) for key in jax.random.split(KEY, 8)]
    agreement = np.array([[float((a == b).mean()) for a in draws] for b in draws])
    assert (np.abs(agreement - 0.5)[~np.eye(8, dtype=bool)] < 0.08).all()


def test_result_does_not_depend_on_the_mesh():
    mesh = jax.make_mesh((len(jax.devices()),), ("data",), axis_types=(AxisType.Auto,))
    x = jnp.ones((8, 12))
    placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
    drop = jax.jit(lambda x: dropout(x, 0.4, KEY))
    np.testing.assert_array_equal(drop(placed), drop(x))


def test_gradient_is_the_mask_times_the_scale():
    x = jax.random.normal(KEY, (40, 30))
    y, back = jax.vjp(lambda x: dropout(x, 0.25, KEY), x)
    np.testing.assert_allclose(back(jnp.ones_like(y))[0] * x, y, rtol=1e-6)


def test_a_dropout_is_a_value_in_trees():
    drop = Dropout(0.1, KEY)
    assert jax.jit(lambda d: d)(drop).rate == 0.1
    assert len(jax.tree.leaves(drop)) == 1


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_rates_outside_are_refused(rate):
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\), got"):
        Dropout(rate, KEY)
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\), got"):
        dropout(jnp.ones(3), rate, KEY)
