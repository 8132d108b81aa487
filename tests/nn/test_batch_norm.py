"""Batch normalisation: pure, by the batch while training and by running statistics otherwise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.nn.batch_norm import BatchNorm


def rows(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(3, 2, shape), jnp.float32)


def test_a_batch_is_normalised_by_itself_and_statistics_move_towards_it():
    norm, x = BatchNorm(5, decay=0.75), rows(6, 4, 5)
    y, statistics = jax.jit(lambda norm, x: norm.observe(x))(norm, x)
    np.testing.assert_allclose(y.mean((0, 1)), np.zeros(5), atol=1e-6)
    np.testing.assert_allclose(y.std((0, 1)), np.ones(5), rtol=1e-4)
    np.testing.assert_allclose(statistics["mean"], 0.25 * x.mean((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(statistics["var"], 0.75 + 0.25 * x.var((0, 1), ddof=1), rtol=1e-5)
    np.testing.assert_array_equal(norm.mean[...], np.zeros(5))


def test_running_statistics_know_no_other_row():
    norm, x = BatchNorm(5), rows(6, 5)
    np.testing.assert_allclose(jax.vmap(norm)(x), norm(x), rtol=1e-6)
    np.testing.assert_array_equal(norm(x[:2]), norm(x)[:2])


def test_running_statistics_that_are_the_batchs_give_what_the_batch_does():
    x = rows(6, 5)
    norm = BatchNorm(5, decay=0.0)
    norm.mean[...], norm.var[...] = x.mean(0), x.var(0)
    np.testing.assert_allclose(norm(x), norm.observe(x)[0], rtol=1e-5, atol=1e-6)


def test_narrow_inputs_are_summed_in_float32():
    x = rows(4096, 5)
    y, statistics = BatchNorm(5, decay=0.0).observe(x.astype(jnp.bfloat16))
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(statistics["mean"], x.mean(0), rtol=1e-3)
    assert statistics["var"].dtype == jnp.float32


def test_one_value_has_no_variance():
    with pytest.raises(ValueError, match=r"two values a channel or more, got 1 of shape \(1, 5\)"):
        BatchNorm(5).observe(rows(1, 5))


@pytest.mark.parametrize("options", [{"channels": 0}, {"channels": 2, "decay": 1.5}, {"channels": 2, "eps": -1.0}])
def test_settings_that_cannot_work_are_refused(options):
    with pytest.raises(ValueError, match="got "):
        BatchNorm(**options)
