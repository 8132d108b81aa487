"""Kernels with adapters beside them: against NumPy, by vmap, in stacks, over layers, and what is refused."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.nn import apply_stack, init_stack, transformer_block
from flax_transformer.nn.adapted import AdaptedKernel, choose_adapter, choosing_rows
from flax_transformer.nn.linear import Linear, LinearGeneral
from flax_transformer.nn.quantized import quantize

pytestmark = pytest.mark.proves("checkpoints", "adapters beside kernels: NumPy, jit, vmap, scan, loop")

N, R = 3, 2
SCALES = np.array([0.5, 2.0, -1.0], np.float32)


def adapted(base, inputs, layers=0, seed=0):
    """A kernel with the random changes of three adapters, chosen by nobody."""
    random = np.random.default_rng(seed)
    lead, rest = base.shape[:layers], base.shape[layers:]
    draw = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)  # noqa: E731
    a, b = draw(*lead, N, *rest[:inputs], R), draw(*lead, N, R, *rest[inputs:])
    factor = jnp.broadcast_to(jnp.asarray(SCALES), (*lead, N))
    return AdaptedKernel(base, a, b, factor, np.full(lead, -1, np.int32))


def with_adapters(model, layers):
    """Put adapters beside the kernels of a block, or of a stack of blocks."""
    inputs = {"out": 2}

    def change(path, node):
        if not isinstance(node, nnx.Variable) or path[-1].name != "kernel":
            return node
        return node.replace(adapted(node.get_value(), inputs.get(path[-2].name, 1), layers, len(path)))

    return jax.tree_util.tree_map_with_path(change, model, is_leaf=lambda node: isinstance(node, nnx.Variable))


def expected(x, kernel, choice, inputs):
    """Row by row, in float64."""
    found = []
    for row, chosen in zip(np.asarray(x, np.float64), choice, strict=True):
        whole = np.asarray(kernel.base, np.float64)
        if chosen >= 0:
            change = np.tensordot(np.asarray(kernel.a[chosen], np.float64), np.asarray(kernel.b[chosen], np.float64), 1)
            whole = whole + float(SCALES[chosen]) * change
        found.append(np.tensordot(row, whole, inputs))
    return np.stack(found)


@pytest.mark.rotates
@pytest.mark.parametrize("places", [(), (3,), (2, 3)])
@pytest.mark.parametrize(("shape", "inputs"), [((5, 4), 1), ((5, 2, 3), 1), ((2, 3, 4), 2)])
def test_each_row_has_its_change(shape, inputs, places):
    kernel = adapted(jax.random.normal(jax.random.key(0), shape), inputs)
    choice = np.array([1, -1, 0, 2, 1])
    x = jax.random.normal(jax.random.key(1), (5, *places, *shape[:inputs]))
    run = jax.jit(lambda kernel, x: kernel.multiply(x, inputs))
    rows = run(replace(kernel, choice=choice), x)
    np.testing.assert_allclose(rows, expected(x, kernel, choice, inputs), rtol=1e-5, atol=1e-5)
    for row, each in enumerate(choice):
        one = run(replace(kernel, choice=np.int32(each)), x[row : row + 1])
        np.testing.assert_allclose(one, rows[row : row + 1], rtol=1e-5, atol=1e-5)
        merged = kernel.merged(None if each < 0 else int(each))
        np.testing.assert_allclose(jnp.tensordot(x[row], merged, inputs), rows[row], rtol=1e-4, atol=1e-5)
    mapped = jax.vmap(lambda each, x: replace(kernel, choice=each).multiply(x, inputs))(choice, x)
    np.testing.assert_allclose(mapped, rows, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(rows[1], run(kernel, x)[1])


def test_several_places_of_a_row_are_its_own():
    kernel = adapted(jnp.ones((5, 4)), 1)
    x = jax.random.normal(jax.random.key(1), (6, 3, 5))
    found = replace(kernel, choice=np.array([2, -1, 0])).multiply(x, 1)
    np.testing.assert_allclose(found, expected(x, kernel, [2, 2, -1, -1, 0, 0], 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [Linear, LinearGeneral])
def test_layers_take_it_for_their_kernel(kind):
    layer = kind(5, 4, rngs=nnx.Rngs(0))
    kernel = adapted(layer.kernel.get_value(), 1)
    layer.bias[...] = jnp.arange(4.0)
    layer.kernel = nnx.Param(kernel)
    x = jax.random.normal(jax.random.key(1), (2, 5))
    found = choose_adapter(layer, np.array([0, 2]))(x)
    np.testing.assert_allclose(found, expected(x, kernel, [0, 2], 1) + np.arange(4.0), rtol=1e-5, atol=1e-5)


def test_changes_of_bfloat16_are_computed_in_float32():
    kernel = adapted(jax.random.normal(jax.random.key(0), (64, 8)), 1)
    x = jax.random.normal(jax.random.key(1), (4, 64), jnp.bfloat16)
    found = replace(kernel, choice=np.array([0, 1, 2, -1])).multiply(x, 1)
    assert found.dtype == jnp.bfloat16
    exact = expected(x.astype(jnp.float32), kernel, [0, 1, 2, -1], 1)
    np.testing.assert_allclose(found.astype(jnp.float32), exact, rtol=0.02, atol=0.02 * np.abs(exact).max())


def test_kernels_of_few_bits_have_adapters_too():
    whole = jax.random.normal(jax.random.key(0), (8, 4))
    few = quantize(whole, "int8")
    kernel = adapted(few, 1)
    x = jax.random.normal(jax.random.key(1), (2, 8))
    found = replace(kernel, choice=np.array([1, -1])).multiply(x, 1)
    plain = replace(kernel, base=few.dequantize())
    np.testing.assert_allclose(found, expected(x, plain, [1, -1], 1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(kernel.merged(1), plain.merged(1), rtol=1e-6)


@pytest.mark.rotates
def test_a_stack_scans_loops_and_differentiates_alike():
    config = transformer_block(embed=8, heads=2, inner=12)
    blocks = with_adapters(init_stack(lambda rngs: config.build(rngs), 3, key=jax.random.key(0)), 1)
    x, choice = jax.random.normal(jax.random.key(1), (4, 5, 8)), np.array([0, -1, 2, 1])

    def run(blocks, x, **how):
        return apply_stack(choose_adapter(blocks, choice), x, **how)

    scanned, looped = run(blocks, x), run(blocks, x, unroll=True)
    np.testing.assert_allclose(scanned, looped, rtol=1e-5, atol=1e-5)
    for row, each in enumerate(choice):
        one = apply_stack(choose_adapter(blocks, each), x[row : row + 1])
        np.testing.assert_allclose(one, scanned[row : row + 1], rtol=1e-5, atol=1e-5)

    def slope(**how):
        floats = lambda blocks: choose_adapter(blocks, 0 * choice)  # noqa: E731
        return jax.grad(lambda x: run(floats(blocks), x, **how).sum())(x)

    np.testing.assert_allclose(slope(), slope(unroll=True, remat="full"), rtol=1e-4, atol=1e-5)


def test_one_program_serves_all_choices():
    kernel = adapted(jnp.ones((5, 4)), 1)
    run = jax.jit(lambda kernel, x: kernel.multiply(x, 1))
    for choice in ([0, 1], [2, -1], [1, 1]):
        run(choose_adapter(kernel, np.array(choice)), jnp.ones((2, 5)))
    assert run._cache_size() == 1
    for choice in (0, 1, -1):
        run(choose_adapter(kernel, np.int32(choice)), jnp.ones((2, 5)))
    assert run._cache_size() == 2


def test_rows_that_do_not_fit_are_refused():
    kernel = choose_adapter(adapted(jnp.ones((5, 4)), 1), np.array([0, 1]))
    for shape in ((3, 5), (5,)):
        with pytest.raises(ValueError, match=r"rows must be a multiple of 2, got x of shape"):
            kernel.multiply(jnp.ones(shape), 1)
    assert choosing_rows(kernel) == 2
    assert choosing_rows(choose_adapter(kernel, np.int32(0))) is None
