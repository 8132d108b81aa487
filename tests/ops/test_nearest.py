import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_transformer.ops.nearest import nearest, round_vectors

pytestmark = pytest.mark.proves("retrieval of texts", "exact search in float32 and int8 against NumPy")


def _vectors(seed, count, width=16):
    vectors = np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.rotates
@given(st.integers(0, 1_000), st.integers(1, 300), st.integers(1, 20), st.integers(1, 3))
def test_the_largest_products_are_found(seed, count, top, queries):
    vectors, asked = _vectors(seed, count), _vectors(seed + 1, queries)
    top = min(top, count)
    scores, places = nearest(vectors, asked, top)
    products = asked.astype(np.float64) @ vectors.T.astype(np.float64)
    expected = np.sort(products, axis=1)[:, ::-1][:, :top]
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(products, np.asarray(places), axis=1), expected, atol=1e-6)


def test_equal_products_come_in_order():
    assert nearest(jnp.ones((5, 2)), jnp.ones((1, 2)), 3)[1].tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("queries", [1, 3, 9])
def test_rounded_vectors_find_what_dequantized_ones_would(queries):
    vectors, asked = _vectors(0, 400), _vectors(1, queries)
    rounded = round_vectors(jnp.asarray(vectors))
    steps = np.abs(vectors).max(1, keepdims=True) / 127
    assert (np.abs(np.asarray(rounded.qvalue * rounded.scale) - vectors) <= 0.51 * steps).all()
    values = np.asarray(rounded.qvalue, np.float64) * np.asarray(rounded.scale, np.float64)
    products = asked @ values.T
    scores, places = nearest(rounded, asked, 5)
    np.testing.assert_array_equal(places, np.argsort(-products, axis=1)[:, :5])
    np.testing.assert_allclose(scores, np.sort(products, axis=1)[:, ::-1][:, :5], atol=1e-5)
    assert rounded.qvalue.dtype == jnp.int8


def test_the_product_of_rounded_vectors_is_one_of_integers():
    rounded = round_vectors(jnp.asarray(_vectors(0, 64)))
    text = jax.jit(nearest, static_argnums=2).lower(rounded, _vectors(1, 1), 3).as_text()
    assert "tensor<64x16xi8>, tensor<8x16xi8>) -> tensor<64x8xi32>" in text


def test_top_must_be_among_the_vectors():
    for top in (0, 6):
        with pytest.raises(ValueError, match=f"top must be between 1 and the number of vectors, got top={top}, N=5"):
            nearest(jnp.ones((5, 2)), jnp.ones((1, 2)), top)
