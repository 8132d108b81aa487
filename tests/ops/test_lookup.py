"""Lookups in tables, on one device plain indexing. On several: nn/test_parted_layers.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_transformer.ops import multiply_rows, spread, take_rows

V, D = 7, 4


@pytest.mark.slow
@given(st.lists(st.integers(0, V - 1), min_size=1, max_size=12), st.integers(0, 9))
def test_lookups_and_products_are_plain_ones(tokens, seed):
    table = jax.random.normal(jax.random.key(seed), (V, D))
    tokens = jnp.array(tokens)
    for given_table in (table, spread(table)):
        np.testing.assert_array_equal(take_rows(given_table, tokens), table[tokens])
        np.testing.assert_allclose(
            multiply_rows(given_table, table[tokens]), table[tokens] @ table.T, rtol=1e-5, atol=1e-6
        )
    onto = jax.random.normal(jax.random.key(seed + 1), (len(tokens), D))
    slope = jax.grad(lambda table: jnp.vdot(take_rows(table, tokens), onto))(table)
    np.testing.assert_allclose(slope, jnp.zeros((V, D)).at[tokens].add(onto), rtol=1e-5, atol=1e-6)


def test_gradients_of_a_frequent_token_do_not_get_lost_in_bfloat16():
    """One by one, bfloat16 stops counting at 256."""
    table, tokens = jnp.zeros((V, D), jnp.bfloat16), jnp.full(4096, 3)
    slope = jax.grad(lambda table: take_rows(table, tokens).astype(jnp.float32).sum())(table)
    assert slope.dtype == jnp.bfloat16
    assert slope[3].tolist() == [4096.0] * D
    assert float(jax.grad(lambda table: table[tokens].astype(jnp.float32).sum())(table)[3, 0]) < 4096


def test_lookups_can_be_differentiated_forward_and_twice():
    table, tokens = jax.random.normal(jax.random.key(0), (V, D)), jnp.array([1, 1, 2])
    value, slope = jax.jvp(lambda table: take_rows(table, tokens), (table,), (2 * table,))
    np.testing.assert_allclose(slope, 2 * value)
    power = lambda table: (take_rows(table, tokens) ** 3).sum()  # noqa: E731
    product = jax.jvp(jax.grad(power), (table,), (jnp.ones_like(table),))[1]
    np.testing.assert_allclose(product, jnp.zeros((V, D)).at[tokens].add(6 * table[tokens]), rtol=1e-5, atol=1e-6)
