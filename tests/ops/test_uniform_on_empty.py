"""Attention that looks at everything alike where it sees nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops import Mask, attention, attention_uniform_on_empty


def inputs(T=5, S=7, N=4, K=2):
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(k, (2, *shape, 6)) for k, shape in zip(keys, ((T, N), (S, K), (S, K)), strict=True)]


MASKS = {
    "lengths": Mask(lengths=jnp.array([0, 4])),
    "left": Mask(dense=jnp.array([[0] * 7, [0, 0, 1, 1, 1, 1, 1]])[:, None, None] != 0),
    "segments": Mask(segments=(jnp.array([[0, 1, 2, 3, 4]] * 2), jnp.array([[0, 1, 1, 1, 4, 4, 4]] * 2))),
    "future": Mask(causal=True, dense=jnp.array([[0, 0, 0, 1, 1, 1, 1]] * 2)[:, None, None] != 0),
    "before": Mask(causal=True, offset=jnp.array([-3, 2])),
    "heads": Mask(dense=jax.random.bernoulli(jax.random.key(2), 0.2, (2, 4, 5, 7))),
}


@pytest.mark.rotates
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_rows_that_see_nothing_are_the_mean_of_all_values_and_others_are_attention(mask):
    """A softmax over scores that are all as small as a number can be says what either is."""
    q, k, v = inputs()
    visible = np.broadcast_to(mask.materialize(5, 7), (2, 4, 5, 7))
    blind = ~visible.any(-1)
    assert blind.any()
    scores = np.einsum("btnh,bsnh->bnts", q, np.repeat(k, 2, axis=2)) / np.sqrt(6)
    weights = jax.nn.softmax(jnp.where(visible, scores, jnp.finfo(jnp.float32).min))
    expected = np.einsum("bnts,bsnh->btnh", weights, np.repeat(v, 2, axis=2))
    run = jax.jit(jax.value_and_grad(lambda v: attention_uniform_on_empty(q, k, v, mask).sum()))
    np.testing.assert_allclose(attention_uniform_on_empty(q, k, v, mask), expected, atol=1e-5)
    total, slope = run(v)
    np.testing.assert_allclose(total, expected.sum(), rtol=1e-4)
    np.testing.assert_allclose(slope.sum(), 2 * 5 * 4 * 6, rtol=1e-5)  # weights are a distribution everywhere


@pytest.mark.parametrize("mask", [None, Mask(), Mask(causal=True)], ids=["none", "all", "causal"])
def test_where_every_query_sees_something_it_is_the_same_program(mask):
    given = inputs()
    texts = [str(jax.make_jaxpr(f)(*given, mask)) for f in (attention, attention_uniform_on_empty)]
    assert texts[0] == texts[1]
