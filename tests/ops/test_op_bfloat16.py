"""Operations on bfloat16 are as good as its inputs and results allow. Of whole blocks: nn/test_layer_bfloat16.py."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equations import equations

from flax_transformer.ops import Mask, attention, dropout, layer_norm, lookup, rotary, rotary_frequencies
from tests.shares import share

KEY = jax.random.key(0)
BACKENDS = ("xla", "blockwise")


def draw(*shapes, dtype=jnp.bfloat16):
    """Arrays that float32 has too, so that only what is done with them differs."""
    keys = jax.random.split(KEY, len(shapes))
    return [
        jax.random.normal(key, shape).astype(jnp.bfloat16).astype(dtype)
        for key, shape in zip(keys, shapes, strict=True)
    ]


def attend(q, k, v, bias, *, backend):
    return attention(q, k, v, Mask(causal=True, lengths=jnp.array([5, 33])), bias, scale=0.3, backend=backend)


QKV = (2, 33, 4, 24), (2, 33, 2, 24), (2, 33, 2, 24), (4, 33, 33)
OPERATIONS = {
    **{backend: (partial(attend, backend=backend), QKV) for backend in BACKENDS},
    "rotary": (lambda x: rotary(x, jnp.arange(7) + 1000, rotary_frequencies(24)), [(3, 7, 2, 24)]),
    "dropout": (lambda x: dropout(x, 0.3, KEY), [(30, 40)]),
    "layer_norm": (lambda x, a, b: layer_norm(x, a, b, 1e-5).astype(x.dtype), [(300, 24), (24,), (24,)]),
    "lookup": (lambda table: lookup(table, jnp.arange(3000) % 7 % 3), [(5, 4)]),
}


@pytest.mark.rotates
@pytest.mark.parametrize("name", share(OPERATIONS, 0, of=3))
def test_results_and_gradients_are_those_of_float32(name):
    operation, shapes = OPERATIONS[name]

    def both(dtype):
        args = draw(*shapes, dtype=dtype)
        out, back = jax.vjp(operation, *args)
        return out, *back(draw(out.shape, dtype=dtype)[0])

    for ours, theirs in zip(both(jnp.bfloat16), both(jnp.float32), strict=True):
        assert ours.dtype == jnp.bfloat16
        ours, theirs = np.float64(ours), np.float64(theirs)
        assert np.linalg.norm(ours - theirs) < 0.01 * np.linalg.norm(theirs)


ROUNDED_ONCE = {"rotary": OPERATIONS["rotary"][0]}
ROUNDED_ONCE |= {f"dropout {rate}": partial(dropout, rate=rate, key=KEY) for rate in (0.05, 0.1, 0.15, 0.3)}


@pytest.mark.parametrize("name", ROUNDED_ONCE)
def test_one_rounding_is_all_that_is_lost(name):
    short, long = (ROUNDED_ONCE[name](*draw((30, 7, 2, 24), dtype=dtype)) for dtype in (jnp.bfloat16, jnp.float32))
    np.testing.assert_array_equal(short, long.astype(jnp.bfloat16))


@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_multiplies_no_float32_in_either_pass(backend):
    def gradients(q, k, v):
        return jax.grad(
            lambda *qkv: attention(*qkv, Mask(causal=True), backend=backend).astype(float).sum(), (0, 1, 2)
        )(q, k, v)

    products = [e for e in equations(gradients, *draw(*QKV[:3])) if e.primitive.name == "dot_general"]
    assert len(products) >= 6
    assert {str(x.aval.dtype) for e in products for x in e.invars} == {"bfloat16"}


@pytest.mark.rotates
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bias_gets_the_float32_sum_of_a_large_batch(backend):
    q, k, v = draw(*[(512, 6, 2, 8)] * 3)
    gradient = lambda bias, q, k, v: jax.grad(  # noqa: E731
        lambda bias: attention(q, k, v, None, bias, backend=backend).astype(jnp.float32).var()
    )(bias)
    bias = jnp.zeros((2, 6, 6))
    ours, theirs = gradient(bias, q, k, v), gradient(bias, *(x.astype(jnp.float32) for x in (q, k, v)))
    assert jnp.linalg.norm(ours - theirs) < 0.02 * jnp.linalg.norm(theirs)
