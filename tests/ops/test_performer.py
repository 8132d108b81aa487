"""Random features of keys of any size: never all lost, and never at the cost of what a query sees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops import Mask
from flax_transformer.ops.attention import linear
from flax_transformer.ops.attention.performer import EPSILON, PerformerAttention, orthogonal_features

pytestmark = pytest.mark.proves("attention variants", "Performer at any norm of keys, against float64")

ATTEND = PerformerAttention(features=64)
LENGTHS = jnp.array([5, 0, 13])
MASKS = {
    "none": Mask(), "causal": Mask(causal=True), "lengths": Mask(lengths=LENGTHS),
    "both": Mask(causal=True, lengths=LENGTHS), "cache": Mask(causal=True, offset=9),
}  # fmt: skip
masks = pytest.mark.parametrize("which", MASKS)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(linear, "_CHUNK", 4)


def inputs(norm, queries=13, length=13, heads=4, width=16):
    """Keys of this norm, the last ones a tenth of it: beside these the features of the others vanish."""
    keys = jax.random.split(jax.random.key(1), 3)
    shapes = (3, queries, heads, width), (3, length, 2, width), (3, length, 2, width)
    q, k, v = (jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))
    k = norm * k / jnp.linalg.norm(k, axis=-1, keepdims=True)
    return 2 * q, k.at[:, -3:].divide(10), v


def by_definition(q, k, v, mask):
    """Compute the same weights as products of features in float64, each row of them by the logarithm."""
    vectors = np.asarray(orthogonal_features(jax.random.key(ATTEND.seed), ATTEND.features, q.shape[-1]), float)
    q, k, v = (np.repeat(np.asarray(x, float), q.shape[-2] // x.shape[-2], axis=-2) for x in (q, k, v))
    q, k = (x / x.shape[-1] ** 0.25 for x in (q, k))
    of_queries, of_keys = (np.einsum("bthw,fw->bhtf", x, vectors) for x in (q, k))
    scales = (of_keys - (np.moveaxis(k, 1, 2) ** 2).sum(-1, keepdims=True) / 2).max(-1)
    of_queries, of_keys = (np.exp(x - x.max(-1, keepdims=True)) + EPSILON for x in (of_queries, of_keys))
    seen = mask.materialize(q.shape[1], k.shape[1])
    seen = np.broadcast_to(True if seen is None else seen, (len(q), q.shape[2], q.shape[1], k.shape[1]))
    scales = np.where(seen, scales[:, :, None], -np.inf)
    scales = np.where(seen, scales - scales.max(-1, keepdims=True), -np.inf)
    weights = np.exp(scales) * np.einsum("bhtf,bhsf->bhts", of_queries, of_keys)
    weights = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    return np.einsum("bhts,bshw->bthw", weights, v)


def call(which, norm):
    q, k, v = inputs(norm, queries=4 if which == "cache" else 13)
    return (q, k, v), jax.jit(lambda q, k, v: ATTEND(q, k, v, MASKS[which]))


@pytest.mark.rotates
@pytest.mark.filterwarnings("ignore:invalid value")
@masks
@pytest.mark.parametrize("norm", [3.0, 60.0, pytest.param(500.0, marks=pytest.mark.slow)])
def test_weights_are_those_of_the_features(which, norm):
    given, attend = call(which, norm)
    # The exponent of a feature is about norm²/8, of which float32 has seven digits.
    near = 2e-5 + 2e-8 * norm**2
    np.testing.assert_allclose(attend(*given), by_definition(*given, MASKS[which]), atol=near)


@pytest.mark.rotates
@masks
@pytest.mark.parametrize("norm", [60.0, pytest.param(500.0, marks=pytest.mark.slow), 1e30])
def test_equal_values_are_what_comes_out_and_gradients_are_finite(which, norm):
    (q, k, v), attend = call(which, norm)
    ones = attend(q, k, jnp.ones_like(v))
    nobody = jnp.zeros(3, bool) if MASKS[which].lengths is None else LENGTHS == 0
    np.testing.assert_allclose(ones, jnp.broadcast_to(jnp.where(nobody, 0, 1)[:, None, None, None], q.shape), atol=1e-5)
    slopes = jax.jit(jax.grad(lambda *x: (ATTEND(*x, MASKS[which]) ** 2).sum(), (0, 1, 2)))(q, k, v)
    assert all(bool(jnp.isfinite(slope).all()) for slope in slopes)


@pytest.mark.rotates
@pytest.mark.parametrize(("norm", "factor"), [(3.0, 1e25), (60.0, 0.0), (60.0, 1e3)])
def test_no_later_or_hidden_key_changes_anything(norm, factor):
    (q, k, v), attend = call("causal", norm)
    later = attend(q, k.at[:, 7:].multiply(factor), v.at[:, 7:].add(1))
    np.testing.assert_array_equal(later[:, :7], attend(q, k, v)[:, :7])
    hidden = jnp.arange(13)[:, None, None] >= LENGTHS[:, None, None, None]
    (q, k, v), attend = call("lengths", norm)
    np.testing.assert_array_equal(attend(q, jnp.where(hidden, factor * k, k), v), attend(q, k, v))
