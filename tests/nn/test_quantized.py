"""Kernels of few bits: values, scales and products against whole numbers in NumPy; bad groups and kinds."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.nn.linear import Linear
from flax_transformer.nn.quantized import BITS, concatenate, group_tiles, quantize, quantize_table

RNG = np.random.default_rng(0)
KERNEL = jnp.asarray(RNG.normal(size=(3, 4, 32, 10)), jnp.float32)
"""[layers, heads, width, outputs]."""
X = jnp.asarray(RNG.normal(size=(2, 5, 4, 32)), jnp.float32)


def rounded(flat, group, most, scales=np.float32):
    """Round a matrix [I, O] in NumPy: values and scales of groups, as the largest value of each says."""
    wide = np.asarray(flat, np.float32).reshape(-1, group or flat.shape[0], flat.shape[-1])
    scale = (np.abs(wide).max(1, keepdims=True) / np.float32(most + 0.5)).astype(scales).astype(np.float32)
    inside = np.abs(wide) < np.abs(wide).max(1, keepdims=True)  # the largest is between two values
    return np.where(inside, np.clip(np.round(wide / scale), -most, most), np.where(wide > 0, most, -most)), scale


@pytest.mark.rotates
@pytest.mark.parametrize("scales", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("group", [None, 8, 32, 64, 128])
@pytest.mark.parametrize(("kind", "most"), [("int8", 127), ("int4", 7)])
def test_values_and_scales_are_those_of_whole_numbers(kind, most, group, scales):
    found = quantize(KERNEL, kind, layers=1, inputs=2, group=group, scale_dtype=scales)
    assert found.shape == KERNEL.shape
    assert found.scale.dtype == scales
    for layer in range(3):
        values, scale = rounded(KERNEL[layer].reshape(128, 10), group, most, scales)
        ours = np.asarray(found.values[layer], np.int32).reshape(values.shape)
        np.testing.assert_array_equal(np.maximum(ours, -most), values)
        theirs = np.asarray(found.scale[layer], np.float32).reshape(scale.shape)
        np.testing.assert_allclose(theirs, scale, rtol=1e-6)
        whole = (ours * theirs).reshape(4, 32, 10)
        np.testing.assert_allclose(found.dequantize()[layer], whole, rtol=1e-7)


@pytest.mark.parametrize("group", [None, 128])
def test_products_of_rounded_inputs_are_products_of_whole_numbers(group):
    found = replace(quantize(KERNEL[0], "int8", inputs=2, group=group), activations="int8")
    given = found.rounded(X, 2)
    values, by_row = rounded(np.asarray(X).reshape(10, 128).T, None, 127)
    np.testing.assert_array_equal(np.maximum(np.asarray(given.qvalue, np.int32), -127).reshape(10, 128).T, values[0])
    x = np.asarray(given.qvalue, np.int64).reshape(10, 128)
    whole = x @ np.asarray(found.values, np.int64).reshape(128, 10)
    expected = whole.astype(np.float32) * by_row.reshape(10, 1) * np.asarray(found.scale).reshape(1, 10)
    np.testing.assert_allclose(found.multiply(X, 2).reshape(10, 10), expected, rtol=1e-6, atol=1e-6)


def test_a_known_scale_of_inputs_cuts_off_what_is_beyond():
    found = replace(quantize(KERNEL[0], "int8", inputs=2), activations="int8", input_scale=jnp.float32(1 / 127))
    expected = jnp.einsum("btnh,nho->bto", jnp.round(jnp.clip(X, -1, 1) * 127) / 127, found.dequantize())
    np.testing.assert_allclose(found.multiply(X, 2), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.rotates
@pytest.mark.parametrize("kind", BITS)
@pytest.mark.parametrize("group", [None, 16])
def test_jit_scan_and_vmap_agree_with_a_loop(kind, group):
    found = quantize(KERNEL, kind, layers=1, inputs=2, group=group)
    loop = [jax.tree.map(lambda part, i=i: part[i], found).multiply(X, 2) for i in range(3)]
    scanned = jax.lax.scan(lambda _, each: (None, each.multiply(X, 2)), None, found)[1]
    mapped = jax.jit(jax.vmap(lambda each: each.multiply(X, 2)))(found)
    for one, two, three in zip(loop, scanned, mapped, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(one, three, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(loop[2], jnp.einsum("btnh,nho->bto", X, found.dequantize()[2]), rtol=1e-4, atol=1e-4)


@pytest.mark.rotates
@pytest.mark.parametrize("kind", BITS)
def test_a_table_is_looked_up_in_and_multiplied_with(kind):
    table = jnp.asarray(RNG.normal(size=(11, 16)), jnp.float32)
    found = quantize_table(table, kind, group=8)
    whole = found.dequantize()
    assert float(jnp.abs(whole - table).max()) < 0.5
    rows = jnp.array([[0, 10], [3, 11]])
    taken = found.take(rows)
    np.testing.assert_array_equal(taken[0], whole[rows[0]])
    assert np.isnan(np.asarray(taken[1, 1])).all()
    np.testing.assert_allclose(found.attend(table), table @ whole.T, rtol=1e-5, atol=1e-5)


def test_a_layer_with_such_a_kernel_adds_its_bias():
    layer = Linear(6, 3, rngs=nnx.Rngs(0))
    layer.bias[...] = jnp.arange(3.0)
    whole, x = layer.kernel[...], X[0, 0, :, :6]
    found = quantize(whole, "int8")
    layer.kernel = layer.kernel.replace(found)
    np.testing.assert_allclose(layer(x), x @ found.dequantize() + jnp.arange(3.0), rtol=1e-5, atol=1e-5)
    gradient = jax.grad(lambda x: layer(x).sum())(x)
    np.testing.assert_allclose(gradient[0], found.dequantize().sum(1), rtol=1e-5)


def test_kernels_side_by_side_are_one():
    parts = [quantize(KERNEL[i], "int4", inputs=2, group=16) for i in range(2)]
    joined = concatenate(parts, axis=2)
    np.testing.assert_array_equal(joined.dequantize(), jnp.concatenate([each.dequantize() for each in parts], axis=2))


@pytest.mark.parametrize("group", [0, 3, 5, 48, 256])
def test_groups_that_do_not_divide_are_refused(group):
    with pytest.raises(ValueError, match=f"groups must divide the inputs, .*got group={group} for inputs 4×32"):
        group_tiles((4, 32, 10), 0, 2, group)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="weights must be one of int8, int4, nf4, float8_e4m3fn, got 'int3'"):
        quantize(KERNEL, "int3")
