"""Keys and values of few bits: what they are rounded to, what attention makes of them, what a cache does."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import qwix
from flax import nnx

from flax_transformer.nn import cache_bytes, quantize_cache, transformer_block, with_precision
from flax_transformer.nn.attention import Attention
from flax_transformer.nn.config import Rotary
from flax_transformer.nn.quantized import ACTIVATIONS
from flax_transformer.nn.talking_heads import TalkingConfig
from flax_transformer.ops import Mask, attention
from flax_transformer.ops.attention.blockwise import BlockwiseAttention
from flax_transformer.ops.attention.dispatch import explain_attention
from flax_transformer.ops.attention.entmax import EntmaxAttention
from flax_transformer.ops.attention.linear import LinearAttention

pytestmark = pytest.mark.proves("cache", "keys and values of int8 and float8, against NumPy")

D, N, K, W, STEPS = 16, 4, 2, 3, 5
CONFIG = transformer_block(embed=D, heads=N, kv_heads=K, inner=8).attention
STEP = jax.jit(Attention.extend)


def layer(**changes):
    return Attention(replace(CONFIG, **changes), rngs=nnx.Rngs(0))


def drawn(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def rounded(x, kind):
    """Round rows of the last axis as the definition says: whole numbers up to 127, floats up to 448."""
    most = np.abs(x).max(-1, keepdims=True)
    if kind == "int8":
        return np.round(x * (np.float32(127) / most)) * (most / np.float32(127))
    scale = most / np.float32(448)
    return (x / scale).astype(jnp.float8_e4m3fn).astype(np.float32) * scale


@pytest.mark.rotates
@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("window", [None, 2])
def test_decoding_is_attention_to_rounded_keys_and_values(kind, window):
    one, x = layer(), drawn(2, STEPS, D)
    q, k, v = (np.asarray(part(x)) for part in (one.query, one.key, one.value))
    k, v = (np.repeat(rounded(part, kind), N // K, axis=2) for part in (k, v))
    at = np.arange(STEPS)
    seen = at[:, None] >= at
    seen = seen if window is None else seen & (at[:, None] - at <= window)
    scores = np.where(seen, np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(D / N), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("bnts,bsnh->btnh", weights / weights.sum(-1, keepdims=True), v)
    expected = np.asarray(one.out(jnp.asarray(mixed, jnp.float32)))
    cache, mask = quantize_cache(one.init_cache(2, STEPS + 2), kind), None if window is None else Mask(window=window)
    for t in range(STEPS):
        y, cache = one.extend(x[:, t : t + 1], cache, mask=mask)
        np.testing.assert_allclose(y[:, 0], expected[:, t], atol=2e-5)
    together, _ = one.extend(x, quantize_cache(one.init_cache(2, STEPS + 2), kind), mask=mask)
    np.testing.assert_allclose(together, expected, atol=2e-5)


def test_the_largest_of_a_head_is_exact_and_half_a_step_is_the_error():
    x = drawn(3, 2, K, 64, seed=1)
    cache = quantize_cache(layer(head_width=64).init_cache(3, 2), "int8").append(x, x)
    found = np.asarray(qwix.dequantize(cache.value)).swapaxes(1, 2)
    most = np.abs(np.asarray(x)).max(-1, keepdims=True)
    assert np.abs(cache.value.qvalue).max() == 127
    assert (np.abs(found - x) <= most / 127 / 2 * 1.0001).all()
    np.testing.assert_allclose(np.abs(found).max(-1, keepdims=True), most, rtol=1e-6)


@pytest.mark.rotates
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_beams_that_share_a_row_are_rows_that_move(kind):
    one, random = layer(), np.random.default_rng(2)
    shared, moved = quantize_cache((one.init_cache(2, 7, beams=W), one.init_cache(2 * W, 7)), kind)
    for _ in range(STEPS):
        x = jnp.asarray(random.normal(size=(2 * W, 1, D)), jnp.float32)
        expected, moved = STEP(one, x, moved)
        found, shared = STEP(one, x, shared)
        np.testing.assert_allclose(found, expected, atol=2e-5)
        rows = jnp.asarray((np.arange(2)[:, None] * W + random.integers(0, W, (2, W))).reshape(-1))
        moved, shared = moved.reorder(rows), shared.reorder(rows)


@pytest.mark.rotates
def test_a_prompt_is_forked_and_grows_with_its_scales():
    one, x = layer(), drawn(2, STEPS, D)
    cache = quantize_cache(one.extend(x[:, :3], one.init_cache(2, 3))[1], "int8").fork(W, 6)
    alone = quantize_cache(one.extend(x[:, :3], one.init_cache(2, 3))[1], "int8").grow(6)
    row = jnp.repeat(x[:, 3:4], W, axis=0)
    np.testing.assert_allclose(one.extend(row, cache)[0][::W], one.extend(x[:, 3:4], alone)[0], atol=1e-5)
    assert cache.key.scale.shape == (2, K, 1, 3 + 3 * W)


@pytest.mark.rotates
def test_more_positions_than_there_is_room_for_are_no_numbers():
    one, x = layer(), drawn(2, 3, D)
    cache = quantize_cache(one.init_cache(2, 2), "int8")
    _, cache = one.extend(x[:, :2], cache)
    assert jnp.isnan(one.extend(x[:, 2:], cache)[0]).all()


@pytest.mark.rotates
def test_vmap_is_batch_and_jit_is_eager():
    one, x = layer(), drawn(3, 1, D)
    cache = quantize_cache(one.init_cache(3, 4), "int8")
    expected, after = one.extend(x, cache)
    np.testing.assert_allclose(STEP(one, x, cache)[0], expected, atol=1e-6)
    each = quantize_cache(one.init_cache(1, 4), "int8")  # without a batch axis
    found, kept = jax.vmap(lambda x: one.extend(x[None], each))(x)
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-5)
    np.testing.assert_array_equal(kept.key.qvalue, after.key.qvalue)


def test_a_projected_memory_is_rounded_once_and_shared():
    one, memory, x = layer(), drawn(2, 6, D), drawn(2 * W, 1, D, seed=3)
    whole = one.project(memory, beams=W)
    few = whole.quantize("int8")
    floats = type(whole)(*(qwix.dequantize(part) for part in (few.key, few.value)), beams=W)
    np.testing.assert_allclose(one(x, few), one(x, floats), atol=1e-5)
    assert few.key.qvalue.dtype == jnp.int8


@pytest.mark.rotates
@pytest.mark.parametrize(
    "config",
    [
        replace(CONFIG, attend=EntmaxAttention()),
        replace(CONFIG, attend=LinearAttention()),
        TalkingConfig.like(replace(CONFIG, kv_heads=None)),
        replace(CONFIG, rotary=Rotary(), qk_norm=1e-6),
    ],
    ids=["entmax", "linear", "talking", "rotary"],
)
def test_every_kind_of_attention_sees_what_the_rounded_numbers_stand_for(config):
    one = config.build(nnx.Rngs(0))
    x, few = drawn(2, 3, D), quantize_cache(one.init_cache(2, 3), "int8")
    _, before = one.extend(x[:, :2], few)
    found, after = one.extend(x[:, 2:], before)
    floats = replace(after, key=qwix.dequantize(after.key), value=qwix.dequantize(after.value))
    q = one._placed(x[:, 2:], None, None, before.index)[0]
    expected = one._attend(q, *floats.by_position(), before.visible(None, 1), None, None)
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_a_cache_takes_a_byte_a_number_and_a_scale_a_head_and_position():
    one = layer(head_width=64)
    plain = one.init_cache(3, 7)
    for kind in ACTIVATIONS:
        assert cache_bytes(quantize_cache(plain, kind)) == 2 * 3 * 7 * K * (64 + 4)
    assert cache_bytes(plain) == 2 * 3 * 7 * K * 64 * 4
    assert cache_bytes(jax.eval_shape(partial(quantize_cache, kind="int8"), plain)) == 2 * 3 * 7 * K * 68


def test_bfloat16_stays_the_type_of_what_comes_out():
    one = with_precision(CONFIG, compute="bfloat16").build(nnx.Rngs(0))
    y, cache = one.extend(drawn(2, 1, D).astype(jnp.bfloat16), quantize_cache(one.init_cache(2, 2), "int8"))
    assert y.dtype == jnp.bfloat16
    assert cache.value.scale.dtype == jnp.float32


def test_what_cannot_be_rounded_is_said():
    cache = layer().init_cache(2, 3)
    with pytest.raises(ValueError, match="caches are rounded to int8 or float8_e4m3fn, got 'int4'"):
        quantize_cache(cache, "int4")
    with pytest.raises(ValueError, match="a cache is rounded once, this one has int8 already"):
        quantize_cache(quantize_cache(cache, "int8"), "float8_e4m3fn")
    with pytest.raises(ValueError, match="keys and values are rounded, tuple has none"):
        quantize_cache((jnp.zeros(3),), "int8")
    assert quantize_cache(cache, None) is cache


def test_backends_without_scales_refuse():
    q = drawn(2, 3, N, 8)
    k = qwix.quantize(q, jnp.int8, channelwise_axes=(0, 1, 2))
    assert "blockwise  cannot: it takes no keys and values of few bits" in explain_attention(q, k, k)
    with pytest.raises(ValueError, match="blockwise attention cannot serve this call: it takes no keys and values of"):
        BlockwiseAttention()(q, k, k)
    with pytest.raises(ValueError, match="keys and values have few bits together, got keys alone"):
        attention(q, k, q)
    other = qwix.quantize(q, jnp.int8, channelwise_axes=(0,))
    with pytest.raises(ValueError, match=r"of few bits have scales \[\*B, S, K, 1\], got \(2, 1, 1, 1\)"):
        attention(q, other, other)
