import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops import Mask, attention
from flax_transformer.ops.attention import blockwise

pytestmark = pytest.mark.proves("attention", "blockwise, in linear memory")


def temporary_bytes(T, backward, backend="blockwise"):
    def forward(q, k, v, lengths):
        return attention(q, k, v, Mask(causal=True, window=T // 2, lengths=lengths), backend=backend)

    def both(q, k, v, lengths):
        return jax.grad(lambda *qkv: forward(*qkv, lengths).sum(), (0, 1, 2))(q, k, v)

    x = jax.ShapeDtypeStruct((1, T, 2, 16), jnp.float32)
    lengths = jax.ShapeDtypeStruct((1,), jnp.int32)
    compiled = jax.jit(both if backward else forward).lower(x, x, x, lengths).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.rotates
@pytest.mark.parametrize("backward", [False, True])
def test_memory_grows_linearly_with_length(backward):
    short, medium, long = (temporary_bytes(T, backward) for T in (4096, 8192, 16384))
    assert long - medium <= 2.1 * (medium - short)
    assert long < 16384**2 * 4 / 8  # an eighth of one float32 T × T array


def test_the_measure_sees_quadratic_memory():
    assert temporary_bytes(4096, True, "xla") > 4096**2 * 4


@pytest.mark.rotates
@pytest.mark.parametrize(("T", "S"), [(1, 1), (1, 700), (513, 512), (600, 1100)])
def test_ragged_lengths_equal_xla(T, S):
    key = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(x, (1, n, 2, 4)) for x, n in zip(key, (T, S, S), strict=True))
    mask = Mask(causal=T <= S)
    blocks, whole = (attention(q, k, v, mask, backend=backend) for backend in ("blockwise", "xla"))
    np.testing.assert_allclose(blocks, whole, atol=1e-5)


def test_window_skips_blocks_without_changing_results(monkeypatch):
    monkeypatch.setattr(blockwise, "_BLOCK", 4)
    key = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(x, (2, 40, 2, 4)) for x in key)
    mask = Mask(causal=True, window=3, lengths=jnp.array([5, 40]))
    blocks, whole = (attention(q, k, v, mask, backend=backend) for backend in ("blockwise", "xla"))
    np.testing.assert_allclose(blocks, whole, atol=1e-5)
