import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops import Dropout, Mask, attention
from flax_transformer.ops.cudnn import cudnn_serves


def shape(T=16, H=64, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct((2, T, 4, H), dtype)


@pytest.mark.parametrize(
    ("q", "mask", "dropout", "reason"),
    [
        (shape(dtype=jnp.float32), None, None, "float16 or bfloat16, got float32"),
        (shape(H=36), None, None, "multiple of 8 up to 128, got 36"),
        (shape(), None, Dropout(0.1, jax.random.key(0)), "no dropout"),
        (shape(), Mask(dense=jnp.ones((1, 16, 16), bool)), None, "booleans"),
        (shape(T=8), Mask(causal=True), None, "T = S, got T=8, S=16"),
        (shape(), Mask(causal=True, offset=0), None, "no offset"),
        (shape(), Mask(window=3), None, "must be causal"),
    ],
)
def test_it_says_why_it_cannot_serve(monkeypatch, q, mask, dropout, reason):
    monkeypatch.setattr("flax_transformer.ops.cudnn.platform", lambda: "gpu")
    k = jax.ShapeDtypeStruct((2, 16, 4, q.shape[-1]), q.dtype)
    assert reason in cudnn_serves(q, k, k, mask, None, dropout)
    assert cudnn_serves(shape(), shape(), shape(), Mask(causal=True, lengths=jnp.ones(2, int)), None, None) is None


@pytest.mark.gpu
@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")
@pytest.mark.parametrize(
    "mask",
    [None, Mask(causal=True), Mask(causal=True, window=100), Mask(lengths=jnp.array([0, 77]))],
    ids=["none", "causal", "window", "lengths"],
)
@pytest.mark.parametrize("biased", [False, True])
def test_output_and_gradients_equal_xla(mask, biased):
    key = jax.random.split(jax.random.key(0), 5)
    heads = (8, 2, 2, 8)
    q, k, v, pull = (jax.random.normal(x, (2, 256, n, 64), jnp.bfloat16) for x, n in zip(key[:4], heads, strict=True))
    bias = jax.random.normal(key[4], (1, 8, 256, 256)) if biased else None

    def both(backend):
        out, back = jax.vjp(lambda q, k, v: attention(q, k, v, mask, bias, backend=backend), q, k, v)
        return out, *back(pull)

    for ours, theirs in zip(both("cudnn"), both("xla"), strict=True):
        np.testing.assert_allclose(ours.astype(jnp.float32), theirs.astype(jnp.float32), atol=0.06, rtol=0.03)
