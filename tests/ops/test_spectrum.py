import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops.spectrum import rank_error, spectrum, spectrum_rank


def test_a_matrix_of_a_rank_has_that_rank_and_no_error_beyond():
    left, right = jax.random.normal(jax.random.key(0), (2, 4, 9, 3))
    matrices = jnp.einsum("btr,bsr->bts", left, right)
    np.testing.assert_array_equal(spectrum_rank(matrices, 0.999), 3)
    assert (rank_error(matrices, 3) < 1e-5).all()
    assert (rank_error(matrices, 2) > 1e-2).all()


def test_the_error_is_that_of_the_best_matrix_of_the_rank():
    weights = jax.nn.softmax(2 * jax.random.normal(jax.random.key(1), (3, 8, 8)))
    u, s, v = np.linalg.svd(np.asarray(weights, float))
    best = (u[..., :2] * s[:, None, :2]) @ v[:, :2]
    expected = np.linalg.norm(weights - best, axis=(1, 2)) / np.linalg.norm(weights, axis=(1, 2))
    np.testing.assert_allclose(rank_error(weights, 2), expected, atol=1e-5)
    np.testing.assert_allclose(spectrum(weights), s, atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 6, 6)])
def test_arrays_of_numpy_stay_numpys_and_say_the_same(shape):
    weights = np.random.default_rng(2).random(shape, np.float32)
    assert isinstance(spectrum(weights), np.ndarray)
    np.testing.assert_allclose(spectrum(weights), spectrum(jnp.asarray(weights)), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(spectrum_rank(weights), spectrum_rank(jnp.asarray(weights)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: rank_error(x, 6), "a rank must be at least 1 and at most the length, 5, got 6"),
        (lambda x: rank_error(x, 0), "at least 1"),
        (lambda x: spectrum_rank(x, 1.5), "above 0 and at most 1, got 1.5"),
    ],
)
def test_ranks_and_shares_that_are_none_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(jnp.ones((5, 5)))
