"""A cache of hypotheses that never moves is a cache of rows that does."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.nn import Block, apply_stack, extend_stack, init_stack, map_stack, transformer_block, unstack
from flax_transformer.nn.attention import Attention
from flax_transformer.ops import Mask
from tests.shares import only, share

pytestmark = pytest.mark.proves("cache", "beams that share a row and never move, growth, layout for a CPU")

CONFIGS = {
    "plain": transformer_block(embed=16, heads=4, inner=8),
    "grouped": transformer_block(embed=16, heads=4, kv_heads=2, inner=8, bias=False),
    "normed": transformer_block(embed=16, heads=4, inner=8, qk_norm=1e-5, scale=0.3),
}
W, LENGTH, STEPS = 3, 7, 5


@pytest.fixture(params=CONFIGS)
def module(request):
    return Attention(CONFIGS[request.param].attention, rngs=nnx.Rngs(0))


def inputs(batch):
    random = np.random.default_rng(batch)
    xs = jnp.asarray(random.normal(size=(STEPS, batch * W, 1, 16)), jnp.float32)
    beams = random.integers(0, W, (STEPS, batch, W))
    rows = jnp.asarray((np.arange(batch)[:, None] * W + beams).reshape(STEPS, -1))
    return xs, rows


@pytest.mark.rotates
@pytest.mark.parametrize("batch", only([1, 4], 4))
def test_selecting_hypotheses_by_ancestry_is_moving_their_rows(module, batch):
    xs, rows = inputs(batch)
    shared, moved = module.init_cache(batch, LENGTH, beams=W), module.init_cache(batch * W, LENGTH)
    for x, row in zip(xs, rows, strict=True):
        expected, moved = module.extend(x, moved)
        found, shared = module.extend(x, shared)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        moved, shared = moved.reorder(row), shared.reorder(row)


@pytest.mark.rotates
@pytest.mark.parametrize("batch", only([1, 4], 4))
def test_a_mask_of_the_caller_holds_for_each_hypothesis(module, batch):
    xs, rows = inputs(batch)
    mask = Mask(
        dense=jnp.asarray(np.random.default_rng(0).random((batch * W, 1, 1, LENGTH)) < 0.6).at[..., 0].set(True)
    )
    shared, moved = module.init_cache(batch, LENGTH, beams=W), module.init_cache(batch * W, LENGTH)
    for x, row in zip(xs, rows, strict=True):
        expected, moved = module.extend(x, moved, mask=mask)
        found, shared = module.extend(x, shared, mask=mask)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        moved, shared = moved.reorder(row), shared.reorder(row)


@pytest.mark.rotates
@pytest.mark.parametrize("batch", only([1, 2], 2))
def test_several_positions_at_once_are_one_after_another(module, batch):
    xs, _ = inputs(batch)
    cache = module.init_cache(batch, LENGTH, beams=W)
    together, _ = module.extend(jnp.concatenate(list(xs), axis=1), cache)
    for t, x in enumerate(xs):
        y, cache = module.extend(x, cache)
        np.testing.assert_allclose(together[:, t : t + 1], y, rtol=1e-5, atol=1e-6)


@pytest.mark.rotates
@pytest.mark.parametrize(("beams", "batch"), share(product([1, W], [1, 4]), 0, of=3))
def test_a_cache_that_grows_is_one_that_was_large(module, batch, beams):
    xs, rows = inputs(batch)
    xs, rows = (xs, rows) if beams > 1 else (xs[:, :batch], jnp.tile(jnp.arange(batch)[::-1], (STEPS, 1)))
    small, large = (module.init_cache(batch, length, beams=beams) for length in (2, LENGTH))
    for t, (x, row) in enumerate(zip(xs, rows, strict=True)):
        if t == 2:
            small = small.grow(LENGTH)
        expected, large = module.extend(x, large)
        found, small = module.extend(x, small)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        small, large = small.reorder(row), large.reorder(row)


def test_a_cache_cannot_shrink(module):
    with pytest.raises(ValueError, match="room for 7 positions, asked for 3"):
        module.init_cache(2, LENGTH).grow(3)


def test_one_product_for_query_key_and_value_is_three(module):
    x = jax.random.normal(jax.random.key(0), (2, 5, 16))
    merged = module.for_decoding()
    assert not hasattr(merged, "query")
    np.testing.assert_allclose(merged(x), module(x), rtol=1e-5, atol=1e-6)
    assert hasattr(module, "query")  # the original is as it was


@pytest.mark.slow
@pytest.mark.parametrize("batch", only([1, 2], 2))
def test_a_stack_taken_apart_is_the_stack(batch):
    cfg = CONFIGS["plain"]
    stack = init_stack(lambda rngs: Block(cfg, rngs=rngs), 3, key=jax.random.key(0))
    apart = unstack(stack)
    x = jax.random.normal(jax.random.key(1), (batch * W, 1, 16))
    key = jax.random.key(2)
    np.testing.assert_allclose(apply_stack(apart, x, key=key), apply_stack(stack, x, key=key), rtol=1e-5, atol=1e-6)
    caches = [map_stack(lambda b: b.attention.init_cache(batch, LENGTH, beams=W), blocks) for blocks in (stack, apart)]
    rows = inputs(batch)[1][0]
    for _ in range(3):
        expected, caches[0] = extend_stack(stack, x, caches[0])
        found, caches[1] = extend_stack(apart, x, caches[1])
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        caches = [caches[0].reorder(rows).grow(9), tuple(cache.reorder(rows).grow(9) for cache in caches[1])]
        x = expected[rows]
