"""Sliding windows: plain attention with a window's mask, shared keys, and memory that grows as the text does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops import Dropout, Mask, attention
from flax_transformer.ops.attention.sliding import sliding_attention

pytestmark = pytest.mark.proves(
    "sliding windows with global tokens", "equal to `attention` with a window's mask, gradients too; memory linear in T"
)


def heads(T, seed=0, rows=2, N=3, H=4):
    return [jax.random.normal(key, (rows, T, N, H)) for key in jax.random.split(jax.random.key(seed), 3)]


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("T", "window"),
    [(37, (3, 5)), (64, (16, 16)), (50, (0, 0)), (41, (20, 0)), (41, (0, 18)), (5, (9, 40)), (1, (2, 2))],
)
def test_it_is_attention_with_a_window(T, window):
    q, k, v = heads(T)
    lengths = jnp.array([T, T - T // 3])
    visible, mask = jnp.arange(T) < lengths[:, None], Mask(window=window, lengths=lengths)

    def ours(q, k, v):
        return sliding_attention(q, k, v, visible, window=window, scale=0.7)

    def plain(q, k, v):
        return attention(q, k, v, mask, scale=0.7, backend="xla")

    np.testing.assert_allclose(ours(q, k, v), plain(q, k, v), atol=1e-6)
    pull = jax.random.normal(jax.random.key(9), q.shape)
    for a, b in zip(jax.vjp(ours, q, k, v)[1](pull), jax.vjp(plain, q, k, v)[1](pull), strict=True):
        np.testing.assert_allclose(a, b, atol=3e-6)


def test_shared_keys_are_in_the_same_softmax():
    q, k, v = heads(33)
    at = jnp.array([[4, 30], [11, 0]])
    take = lambda x: jnp.take_along_axis(x, at[..., None, None], axis=1)  # noqa: E731
    known = jnp.array([[True, True], [True, False]])
    visible = jnp.ones((2, 33), bool).at[0, at[0]].set(False).at[1, 11].set(False)
    found = sliding_attention(q, k, v, visible, (take(k), take(v), known), window=(2, 6))
    columns = ~visible
    mask = Mask(window=(2, 6)) | Mask(dense=jnp.broadcast_to(columns[:, None, None, :], (2, 1, 33, 33)))
    np.testing.assert_allclose(found, attention(q, k, v, mask, backend="xla"), atol=1e-6)


def test_a_query_that_sees_nothing_gets_zeros_and_no_gradient():
    q, k, v = heads(20)
    blind = jnp.zeros((2, 20), bool)
    found, pull = jax.vjp(lambda *x: sliding_attention(*x, blind, window=4), q, k, v)
    assert not np.any(found)
    assert all(not np.any(each) and np.isfinite(each).all() for each in pull(jnp.ones_like(q)))


@pytest.mark.rotates
def test_dropout_keeps_the_mean():
    q, k, v = heads(40)
    keys = jax.random.split(jax.random.key(1), 400)
    drop = lambda key: sliding_attention(q, k, v, window=5, dropout=Dropout(0.3, key))  # noqa: E731
    found = jax.vmap(drop)(keys)
    assert found.std(0).min() > 0
    np.testing.assert_allclose(found.mean(0), sliding_attention(q, k, v, window=5), atol=0.2)


def memory(function, T):
    x = jax.ShapeDtypeStruct((1, T, 2, 8), jnp.float32)
    compiled = jax.jit(jax.grad(lambda *x: function(*x).sum(), argnums=(0, 1, 2))).lower(x, x, x).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_memory_is_linear_in_the_length():
    """Forward and backward, of the compiled program; that of plain attention is four times as large at twice the T."""
    short, long = (memory(lambda *x: sliding_attention(*x, window=32), T) for T in (1024, 4096))
    assert 3 < long / short < 4.4
    short, long = (memory(lambda *x: attention(*x, Mask(window=32), backend="xla"), T) for T in (256, 1024))
    assert long / short > 8


def test_what_does_not_fit_is_refused():
    q, k, v = heads(10)
    with pytest.raises(ValueError, match="as many queries, keys and values"):
        sliding_attention(q, k[:, :5], v[:, :5], window=2)
    with pytest.raises(ValueError, match="both at least 0"):
        sliding_attention(q, k, v, window=(-1, 2))
    with pytest.raises(ValueError, match="visible must broadcast"):
        sliding_attention(q, k, v, jnp.ones((2, 5), bool), window=2)
