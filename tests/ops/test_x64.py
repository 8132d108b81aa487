"""With `jax_enable_x64` float64 inputs are computed in float64, and float32 ones stay what they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops import (
    Dropout,
    Mask,
    alibi,
    attention,
    dropout,
    layer_norm,
    relative_buckets,
    rotary,
    rotary_frequencies,
)
from flax_transformer.ops.attention import blockwise


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True):
        yield


def heads(*shapes, seed=0):
    random = np.random.default_rng(seed)
    return [jnp.asarray(random.normal(size=shape)) for shape in shapes]


def plain(q, k, v, bias, visible, scale):
    """Attention as the paper writes it, in NumPy's float64."""
    k, v = (np.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = np.where(visible, np.einsum("btnh,bsnh->bnts", q, k) * scale + bias, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bnts,bsnh->btnh", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.rotates
@pytest.mark.parametrize("backend", ["xla", "blockwise"])
@pytest.mark.parametrize("bias_type", ["float32", "float64"])
def test_attention_is_float64_in_both_passes(monkeypatch, backend, bias_type):
    monkeypatch.setattr(blockwise, "_BLOCK", 4)
    q, k, v, bias, pull = heads((2, 7, 4, 6), (2, 9, 2, 6), (2, 9, 2, 6), (4, 7, 9), (2, 7, 4, 6))
    mask, bias = Mask(causal=True, window=(5, 0)), bias.astype(bias_type)
    attend = lambda q, k, v, bias: attention(q, k, v, mask, bias, scale=0.3, backend=backend)  # noqa: E731
    out, back = jax.vjp(attend, q, k, v, bias)
    assert out.dtype == jnp.float64
    np.testing.assert_allclose(out, plain(q, k, v, bias, mask.materialize(7, 9), 0.3), atol=1e-13)
    gradients = back(pull)
    assert [str(g.dtype) for g in gradients] == ["float64"] * 3 + [bias_type]
    for i, gradient in enumerate(gradients[:3]):
        step = heads(gradient.shape, seed=1)[0]
        moved = [attend(*(q, k, v)[:i], (q, k, v)[i] + by * step, *(q, k, v)[i + 1 :], bias) for by in (1e-5, -1e-5)]
        np.testing.assert_allclose(jnp.vdot(gradient, step), jnp.vdot(moved[0] - moved[1], pull) / 2e-5, rtol=1e-8)


@pytest.mark.rotates
def test_float32_stays_float32():
    q, scale = (x.astype(jnp.float32) for x in heads((2, 5, 2, 4), (4,)))
    drop = Dropout(0.5, jax.random.key(0))
    for backend in ("xla", "blockwise"):
        assert attention(q, q, q, Mask(causal=True, lengths=jnp.array([2, 5])), backend=backend).dtype == jnp.float32
    assert attention(q, q, q, dropout=drop).dtype == jnp.float32
    assert rotary(q, jnp.arange(5), rotary_frequencies(4)).dtype == jnp.float32
    assert dropout(q, 0.5, drop.key).dtype == jnp.float32
    assert layer_norm(q, scale, scale, 1e-5).dtype == jnp.float32
    assert alibi(2, 5, 5).dtype == jnp.float32


@pytest.mark.rotates
def test_what_is_about_positions_and_drops_is_the_same_as_in_32_bits():
    (x,) = heads((3, 5, 2, 4))
    key, far = jax.random.key(0), jnp.arange(5) + 70_000
    dropped, turned = np.asarray(dropout(x, 0.5, key)), rotary(x, far, rotary_frequencies(4))
    angle = np.arange(70_000, 70_005)[:, None, None] * np.float64(rotary_frequencies(4))
    a, b = np.split(np.asarray(x), 2, -1)
    expected = np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)
    np.testing.assert_allclose(turned, expected, atol=1e-10)
    buckets = np.asarray(relative_buckets(jnp.arange(-200, 200)))
    with jax.enable_x64(False):
        np.testing.assert_array_equal(dropped != 0, dropout(jnp.ones(x.shape), 0.5, jax.random.key(0)) != 0)
        np.testing.assert_array_equal(buckets, relative_buckets(jnp.arange(-200, 200)))
