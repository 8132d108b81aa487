import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from flax_transformer.ops import layer_norm


def exact(x, scale, bias, eps):
    x = np.asarray(x, np.float64)
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * scale + bias


@pytest.mark.parametrize("mean", [0, -30, 1000, 3000])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_it_is_as_exact_as_its_input_whatever_the_mean(mean, dtype):
    key = jax.random.split(jax.random.key(0), 3)
    x = (mean + jax.random.normal(key[0], (5, 384)) * (1 if dtype == "float32" else 16)).astype(dtype)
    scale, bias = jax.random.normal(key[1], 384), jax.random.normal(key[2], 384)
    ours = jax.jit(layer_norm, static_argnums=3)(x, scale, bias, 1e-5)
    assert ours.dtype == jnp.float32
    np.testing.assert_allclose(ours, exact(x, scale, bias, 1e-5), rtol=2e-6, atol=2e-6)


@pytest.mark.slow
def test_derivatives_of_both_modes_and_of_second_order_are_those_of_the_formula():
    x, scale, bias = jax.random.normal(jax.random.key(0), (3, 6)), jnp.linspace(1, 2, 6), jnp.linspace(-1, 1, 6)
    with jax.enable_x64(True):
        args = [jnp.asarray(np.float64(a)) for a in (x, scale, bias)]
        check_grads(
            lambda *args: jnp.tanh(layer_norm(*map(jnp.asarray, args), 1e-3)), args, order=2, atol=1e-6, rtol=1e-6
        )


@pytest.mark.rotates
def test_a_constant_row_is_the_bias_and_has_a_finite_gradient():
    x, bias = jnp.full((2, 8), 7.0), jnp.arange(8.0)
    np.testing.assert_array_equal(layer_norm(x, jnp.ones(8), bias, 1e-5), jnp.stack([bias, bias]))
    gradient = jax.grad(lambda x: (layer_norm(x, jnp.ones(8), bias, 1e-5) ** 2).sum())(x)
    assert bool(jnp.isfinite(gradient).all())
