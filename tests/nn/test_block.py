"""Blocks: parity with torch's layers, and the invariants of a pure function."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.nn import (
    Block,
    FeedForward,
    Memory,
    PerLayer,
    Precision,
    Rotary,
    apply_stack,
    init_stack,
    layer,
    transformer_block,
    with_fields,
)
from flax_transformer.ops import Mask
from tests.shares import only, share

SMALL = transformer_block(embed=16, heads=4, inner=32)
VARIANTS = {
    "post": SMALL,
    "pre": with_fields(SMALL, norm_position="pre"),
    "rms": with_fields(SMALL, norm="rms", norm_position="pre", bias=False),
    "gated": with_fields(SMALL, gated=True, activation="silu"),
    "grouped": with_fields(SMALL, kv_heads=2, head_width=6),
    "multi-query": with_fields(SMALL, kv_heads=1),
    "rotary": with_fields(SMALL, rotary=Rotary(), qk_norm=1e-5),
    "qkv-bias": replace(SMALL, attention=replace(SMALL.attention, out_bias=False)),
    "unscaled": with_fields(SMALL, scale=1.0),
}


def block(cfg, seed=0):
    """Make a block whose biases and scales are not the neutral ones they start as."""
    made = Block(cfg, rngs=nnx.Rngs(seed))
    leaves, treedef = jax.tree.flatten(made)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    return treedef.unflatten(
        [leaf + 0.1 * jax.random.normal(k, leaf.shape) for leaf, k in zip(leaves, keys, strict=True)]
    )


def inputs(*shape, seed=7):
    return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.rotates
@pytest.mark.parametrize("name", share(VARIANTS, 0, of=6))
def test_scan_equals_loop(name):
    cfg = VARIANTS[name]
    blocks = init_stack(lambda rngs: Block(cfg, rngs=rngs), 3, key=jax.random.key(1))
    x = inputs(2, 5, 16)
    looped = x
    for i in range(3):
        looped = layer(blocks, i)(looped, mask=Mask(causal=True))
    scanned = apply_stack(blocks, x, mask=Mask(causal=True))
    unrolled = apply_stack(blocks, x, mask=Mask(causal=True), unroll=True)
    np.testing.assert_allclose(scanned, looped, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(unrolled, looped, rtol=2e-5, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("remat", only(["full", "attention", "dots", "offload"], "dots"))
def test_rematerialised_gradients_are_the_same(remat):
    cfg = with_fields(SMALL, dropout=0.2)
    blocks = init_stack(lambda rngs: Block(cfg, rngs=rngs), 2, key=jax.random.key(1))
    loss = lambda b, r: (apply_stack(b, inputs(2, 5, 16), key=jax.random.key(3), remat=r) ** 2).sum()  # noqa: E731
    expected, got = jax.grad(loss)(blocks, "none"), jax.grad(loss)(blocks, remat)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.rotates
@pytest.mark.parametrize("name", share(VARIANTS, 1, of=6))
def test_vmap_equals_batch(name):
    b, x = block(VARIANTS[name]), inputs(3, 5, 16)
    np.testing.assert_allclose(jax.vmap(lambda row: b(row))(x), b(x), rtol=1e-5, atol=1e-5)


@pytest.mark.rotates
@pytest.mark.parametrize("name", share(VARIANTS, 2, of=3))
def test_jit_equals_eager(name):
    b, x = block(VARIANTS[name]), inputs(3, 5, 16)
    np.testing.assert_allclose(jax.jit(lambda m, h: m(h))(b, x), b(x), rtol=1e-5, atol=1e-5)


@pytest.mark.rotates
@pytest.mark.parametrize("name", share(VARIANTS, 0, of=3))
def test_causal_block_has_a_triangular_jacobian(name):
    b = block(VARIANTS[name])
    jacobian = jax.jacobian(lambda x: b(x, mask=Mask(causal=True)).sum(-1))(inputs(5, 16))
    reach = np.abs(np.asarray(jacobian)).sum(-1)
    assert np.all(reach[np.triu_indices(5, 1)] == 0)
    assert np.all(np.diag(reach) > 0)
    assert reach[4, 0] > 0


@pytest.mark.rotates
@pytest.mark.parametrize("name", share(VARIANTS, 1, of=3))
def test_cached_equals_uncached(name):
    b, x = block(VARIANTS[name]), inputs(2, 6, 16)
    full = b(x, mask=Mask(causal=True))
    cache = b.attention.init_cache(2, 8)
    first, cache = b.extend(x[:, :3], cache)  # several at once, then one by one
    rest = []
    for t in range(3, 6):
        y, cache = b.extend(x[:, t : t + 1], cache)
        rest.append(y)
    np.testing.assert_allclose(jnp.concatenate([first, *rest], 1), full, rtol=2e-5, atol=2e-5)
    assert int(cache.index) == 6


@pytest.mark.rotates
def test_projected_memory_equals_hidden_memory_and_is_shared_by_beams():
    b = block(replace(SMALL, cross=SMALL.attention))
    x, memory, lengths = inputs(6, 1, 16), inputs(2, 7, 16, seed=8), jnp.array([7, 4])
    projected = b.cross.project(memory, beams=3)
    assert isinstance(projected, Memory)
    beams = b(x, projected, memory_mask=Mask(lengths=lengths))
    repeated = b(x, jnp.repeat(memory, 3, axis=0), memory_mask=Mask(lengths=jnp.repeat(lengths, 3)))
    np.testing.assert_allclose(beams, repeated, rtol=1e-5, atol=1e-5)


@pytest.mark.rotates
def test_key_makes_dropout_and_no_key_none():
    b = block(with_fields(SMALL, dropout=0.5, attention_dropout=0.5, activation_dropout=0.5))
    plain = block(SMALL)
    x = inputs(2, 5, 16)
    assert jnp.array_equal(b(x), plain(x))
    one, again, other = (b(x, key=jax.random.key(k)) for k in (0, 0, 1))
    assert jnp.array_equal(one, again)
    assert not jnp.allclose(one, other)


@pytest.mark.rotates
def test_layers_draw_different_dropout():
    cfg = with_fields(SMALL, dropout=0.5, norm_position="pre")
    single = block(cfg)
    blocks = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), single)
    seen = jax.vmap(lambda b, k: b(inputs(1, 5, 16), key=k))(blocks, jax.random.split(jax.random.key(0)))
    assert not jnp.allclose(seen[0], seen[1])


@pytest.mark.rotates
def test_per_layer_arguments_are_sliced():
    blocks = init_stack(lambda rngs: Block(SMALL, rngs=rngs), 2, key=jax.random.key(1))
    x, bias = inputs(1, 4, 16), inputs(2, 1, 4, 4, 4)
    looped = layer(blocks, 1)(layer(blocks, 0)(x, bias=bias[0]), bias=bias[1])
    np.testing.assert_allclose(apply_stack(blocks, x, bias=PerLayer(bias)), looped, rtol=1e-5, atol=1e-5)


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_parameters():
    b = Block(with_fields(SMALL, precision=Precision(compute="bfloat16")), rngs=nnx.Rngs(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(b)} == {jnp.dtype("float32")}
    y = b(inputs(2, 5, 16).astype(jnp.bfloat16))
    assert y.dtype == jnp.bfloat16
    exact = Block(SMALL, rngs=nnx.Rngs(0))(inputs(2, 5, 16))
    np.testing.assert_allclose(np.asarray(y, np.float32), exact, atol=0.1)


def test_attention_function_can_be_swapped():
    seen = []

    def spy(q, k, v, mask=None, bias=None, **options):
        seen.append(q.shape)
        return v

    Block(with_fields(SMALL, attend=spy), rngs=nnx.Rngs(0))(inputs(2, 5, 16))
    assert seen == [(2, 5, 4, 4)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "heads must divide the model width, got D=16, N=3"),
        ({"kv_heads": 3}, "query heads must be a multiple of kv heads, got N=4, K=3"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"head_width": 5, "rotary": Rotary()}, "rotary positions need an even head width, got H=5"),
        ({"activation": "rleu"}, "relu"),
        ({"inner": 0}, "inner must be at least 1, got 0"),
    ],
)
def test_configs_that_cannot_work_say_why(change, message):
    with pytest.raises(ValueError, match=message):
        with_fields(SMALL, **change)


def test_memory_where_there_is_no_cross_attention_is_an_error():
    with pytest.raises(ValueError, match="takes no memory"):
        block(SMALL)(inputs(1, 2, 16), inputs(1, 3, 16))
    with pytest.raises(ValueError, match="needs a memory"):
        block(replace(SMALL, cross=SMALL.attention))(inputs(1, 2, 16))


def test_sublayers_side_by_side_see_what_the_block_is_given():
    block = Block(replace(VARIANTS["pre"], parallel=True), rngs=nnx.Rngs(0))
    x = inputs(2, 5, 16)
    seen = block.attention_residual.norm(x), block.feedforward_residual.norm(x)
    np.testing.assert_allclose(block(x), x + block.attention(seen[0]) + block.feedforward(seen[1]), atol=1e-5)
    with pytest.raises(ValueError, match="no norm after their sum"):
        replace(SMALL, parallel=True)


def test_a_norm_on_either_side_of_a_sublayer():
    block = Block(with_fields(SMALL, norm="zero_centered_rms", norm_position="both"), rngs=nnx.Rngs(0))
    before, after = block.attention_residual.norm, block.attention_residual.output_norm
    before.scale[...], after.scale[...] = jnp.full(16, 0.5), jnp.full(16, -0.5)
    x = inputs(2, 5, 16)
    root = lambda x: jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)  # noqa: E731
    y = block.attention(1.5 * x / root(x))
    found = block.attention_residual(x, block.attention)
    np.testing.assert_allclose(found, x + 0.5 * y / root(y), atol=1e-5)


def test_unknown_remat_policy_is_named():
    with pytest.raises(ValueError, match="remat must be one of none, full, attention, dots, offload, got 'most'"):
        apply_stack(
            init_stack(lambda r: Block(SMALL, rngs=r), 1, key=jax.random.key(0)), inputs(1, 2, 16), remat="most"
        )


def test_feedforward_acts_on_each_position_alone():
    f = FeedForward(SMALL.feedforward, rngs=nnx.Rngs(0))
    x = inputs(2, 5, 16)
    np.testing.assert_allclose(f(x)[:, 2], f(x[:, 2:3])[:, 0], rtol=1e-5, atol=1e-6)


def test_flattened_linear_layers_equal_plain_ones():
    from flax_transformer.nn.linear import flat_dot_general

    x, w = inputs(2, 3, 4, 5), inputs(4, 5, 6, 7, seed=9)
    numbers = (((2, 3), (0, 1)), ((), ()))
    np.testing.assert_allclose(
        flat_dot_general(x, w, numbers), jax.lax.dot_general(x, w, numbers), rtol=1e-5, atol=1e-5
    )
    batched = (((3,), (1,)), ((0,), (0,)))
    x, w = inputs(2, 3, 4, 5), inputs(2, 5, 6, seed=9)
    np.testing.assert_allclose(
        flat_dot_general(x, w, batched), jax.lax.dot_general(x, w, batched), rtol=1e-5, atol=1e-5
    )
