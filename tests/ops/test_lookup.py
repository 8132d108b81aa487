"""Lookups in tables, on one device plain indexing. On several: nn/test_parted_layers.py."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from flax_transformer.models.causal import Causal
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.objective import TokenLoss
from flax_transformer.ops import lookup, multiply_rows, spread, take_rows
from flax_transformer.parallel import MeshConfig, abstract_mesh

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


@pytest.mark.rotates
def test_gradients_of_a_frequent_token_do_not_get_lost_in_bfloat16():
    """One by one, bfloat16 stops counting at 256."""
    table, tokens = jnp.zeros((V, D), jnp.bfloat16), jnp.full(4096, 3)
    slope = jax.grad(lambda table: take_rows(table, tokens).astype(jnp.float32).sum())(table)
    assert slope.dtype == jnp.bfloat16
    assert slope[3].tolist() == [4096.0] * D
    assert float(jax.grad(lambda table: table[tokens].astype(jnp.float32).sum())(table)[3, 0]) < 4096


@pytest.mark.parametrize("id", [-1, -7, -100, V, 100])
def test_an_id_that_there_is_not_gives_nan_and_learns_nothing(id):
    table, tokens = jax.random.normal(jax.random.key(0), (V, D)), jnp.array([2, id])
    for look in (lookup, take_rows, jax.jit(take_rows), lambda table, ids: jax.vmap(lookup, (None, 0))(table, ids)):
        found, slope = look(table, tokens), jax.grad(lambda table, look=look: look(table, tokens)[0].sum())(table)
        assert np.isnan(found[1]).all()
        np.testing.assert_array_equal(found[0], table[2])
        np.testing.assert_array_equal(slope, jnp.zeros((V, D)).at[2].set(1))


@pytest.mark.rotates
def test_lookups_can_be_differentiated_forward_and_twice():
    table, tokens = jax.random.normal(jax.random.key(0), (V, D)), jnp.array([1, 1, 2])
    value, slope = jax.jvp(lambda table: take_rows(table, tokens), (table,), (2 * table,))
    np.testing.assert_allclose(slope, 2 * value)
    power = lambda table: (take_rows(table, tokens) ** 3).sum()  # noqa: E731
    product = jax.jvp(jax.grad(power), (table,), (jnp.ones_like(table),))[1]
    np.testing.assert_allclose(product, jnp.zeros((V, D)).at[tokens].add(6 * table[tokens]), rtol=1e-5, atol=1e-6)


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("tied", "length", "large", "summed"),
    [(False, 4, 2**30, True), (True, 4, 0, True), (True, 4, 2**30, False), (True, 64, 0, False)],
)
def test_the_gradient_of_a_head_is_summed_before_the_backward_pass_goes_on(tied, length, large, summed, monkeypatch):
    """Else a device keeps its part of it, as large as the whole table, until all layers are through.

    A tied table that is small, or that more tokens are looked up in than it has rows, has as large a gradient to come.
    """
    monkeypatch.setattr("flax_transformer.nn.embedding.LARGE", large)
    config, tokens = replace(gpt2_tiny(vocab=32), tied_output=tied), jnp.zeros((4, length), jnp.int32)
    model = jax.eval_shape(lambda: Causal(config, rngs=nnx.Rngs(0)))
    batch = {"inputs": {"tokens": tokens}, "labels": tokens, "weights": tokens}
    slope = jax.grad(lambda model: TokenLoss()(model, batch)[0])
    assert "optimization_barrier" not in str(jax.make_jaxpr(slope)(model))
    with jax.sharding.use_abstract_mesh(abstract_mesh(MeshConfig(data=1, fsdp=4))):
        assert ("optimization_barrier" in str(jax.make_jaxpr(slope)(model))) == summed
