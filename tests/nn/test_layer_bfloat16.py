"""Layers that compute in bfloat16 lose no gradient: nothing is added up over a batch in bfloat16. Of operations alone:
ops/test_op_bfloat16.py."""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equations import equations
from flax import nnx

from flax_transformer.nn import (
    Block,
    Embedding,
    EmbeddingConfig,
    RelativeBias,
    RelativeConfig,
    Rotary,
    apply_stack,
    init_stack,
    transformer_block,
    with_fields,
    with_precision,
)
from flax_transformer.nn.linear import Linear, LinearGeneral
from flax_transformer.nn.norm import LayerNorm
from flax_transformer.ops import Mask, attention, causal_relative_buckets, relative_buckets
from flax_transformer.ops.attention import blockwise
from flax_transformer.parallel.sharding import path_name
from tests.shares import only, share

B, T = 83, 37  # bfloat16 has no 3071 = B·T, and counts no further than 256


def twins(make, cfg):
    """A module in float32 and one that computes in bfloat16, with the same parameters, which bfloat16 has too."""
    long, short = make(cfg), make(with_precision(cfg, compute="bfloat16"))
    leaves = [leaf.astype(jnp.bfloat16).astype(jnp.float32) for leaf in jax.tree.leaves(long)]
    return tuple(jax.tree.unflatten(jax.tree.structure(module), leaves) for module in (long, short))


@pytest.mark.parametrize("told", [False, True], ids=["by default", "told"])
def test_tables_of_types_and_positions_count_every_token(told):
    cfg = EmbeddingConfig(vocab=9, embed=4, position="learned", max_length=T, offset=2, types=2, scaled=False)
    tokens = jnp.full((B, T), 3)
    more = {"types": tokens - 2, "positions": jnp.broadcast_to(jnp.arange(T), (B, T))} if told else {}
    _, embedding = twins(lambda cfg: Embedding(cfg, rngs=nnx.Rngs(0)), cfg)
    gradient = jax.jit(jax.grad(lambda e, more: e(tokens, **more).astype(jnp.float32).sum()))(embedding, more)
    np.testing.assert_array_equal(gradient.position.embedding[...][:, 0], [0, 0, *[B] * T])
    np.testing.assert_array_equal(gradient.type.embedding[...][:, 0], [0, B * T] if told else [B * T, 0])


@pytest.mark.parametrize("position", ["sinusoidal", "learned"])
def test_embeddings_are_added_up_before_they_are_rounded(position):
    cfg = EmbeddingConfig(vocab=9, embed=24, types=2, position=position)
    long, short = twins(lambda cfg: Embedding(cfg, rngs=nnx.Rngs(0)), cfg)
    np.testing.assert_array_equal(short(jnp.arange(9)), long(jnp.arange(9)).astype(jnp.bfloat16))


KINDS = {"dtype": jnp.dtype("bfloat16"), "param_dtype": jnp.dtype("float32")}
LAYERS = {
    "linear": (lambda rngs: Linear(4, 3, rngs=rngs, **KINDS), (4,)),
    "general": (
        lambda rngs: LinearGeneral((2, 2), 3, axis=(-2, -1), dot_general=jax.lax.dot_general, rngs=rngs, **KINDS),
        (2, 2),
    ),
    "norm": (lambda rngs: LayerNorm(4, rngs=rngs, **KINDS), (4,)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_biases_count_every_position(name):
    make, inputs = LAYERS[name]
    layer, x = make(nnx.Rngs(0)), jax.random.normal(jax.random.key(0), (B, T, *inputs))
    ones = jnp.ones(jax.eval_shape(layer, x).shape, jnp.bfloat16)
    total = lambda layer, x, ones: (layer(x) * ones).astype(jnp.float32).sum()  # noqa: E731
    np.testing.assert_array_equal(jax.jit(jax.grad(total))(layer, x, ones).bias[...], B * T)


SHAPE = {"embed": 24, "heads": 4, "inner": 48}
BLOCKS = {
    "post-norm": transformer_block(**SHAPE, activation="gelu"),
    "pre-norm, gated, cross": transformer_block(
        **SHAPE, norm_position="pre", gated=True, activation="gelu", cross=True
    ),
    "rms, rotary, grouped": transformer_block(
        **SHAPE, norm="rms", kv_heads=2, rotary=Rotary(), qk_norm=1e-5, bias=False
    ),
    "relative": transformer_block(**SHAPE, norm="rms", norm_position="pre", scale=1.0, bias=False),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"),
    only(product(BLOCKS, ["xla", "blockwise"]), ("relative", "blockwise")),
)
def test_loss_and_every_gradient_of_a_stack_are_those_of_float32(name, backend, monkeypatch):
    """Key biases apart, whose gradient is zero by the softmax: what is left of it is rounding in either type."""
    monkeypatch.setattr(blockwise, "_BLOCK", 16)
    cfg = with_fields(BLOCKS[name], attend=partial(attention, backend=backend))

    def make(cfg):
        blocks = init_stack(lambda rngs: Block(cfg, rngs=rngs), 2, key=jax.random.key(1))
        relative = RelativeBias(RelativeConfig(), 4, causal=True, precision=cfg.attention.precision, rngs=nnx.Rngs(2))
        return {"blocks": blocks, "relative": relative} if name == "relative" else {"blocks": blocks}

    def loss(model, x, memory, goal):
        more = {"bias": model["relative"](T, T)} if "relative" in model else {}
        given = (memory.astype(x.dtype),) if model["blocks"].cfg.cross else ()
        y = apply_stack(model["blocks"], x, *given, mask=Mask(causal=True), **more)
        return jnp.square(y.astype(jnp.float32) - goal).mean()

    x, memory, goal = (jax.random.normal(key, (12, T, 24)) for key in jax.random.split(jax.random.key(3), 3))
    results = {}
    for model, dtype in zip(twins(make, cfg), (jnp.float32, jnp.bfloat16), strict=True):
        results[dtype] = jax.jit(jax.value_and_grad(loss))(model, x.astype(jnp.bfloat16).astype(dtype), memory, goal)
    (long, expected), (short, gradients) = results.values()
    assert abs(short - long) < 0.01 * long
    pairs = zip(jax.tree_util.tree_leaves_with_path(gradients), jax.tree.leaves(expected), strict=True)
    off = {path_name(path): float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b)) for (path, a), b in pairs}
    assert {name: error for name, error in off.items() if error > 0.05 and not name.endswith("key.bias")} == {}


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("causal", "T", "S", "offset"),
    share(
        [
            (causal, *sizes)
            for causal in (False, True)
            for sizes in [(7, 7, 0), (5, 9, 4), (9, 5, 0), (1, 12, 6), (1, 1, 0), (0, 4, 0), (4, 0, 0)]
        ],
        1,
        of=4,
    ),
)
def test_a_relative_bias_is_the_bucket_of_every_distance(T, S, offset, causal):
    cfg = RelativeConfig(buckets=8, max_distance=10)
    bias = RelativeBias(cfg, 3, causal=causal, precision=BLOCKS["relative"].attention.precision, rngs=nnx.Rngs(0))
    distance = jnp.arange(S) - (jnp.arange(T)[:, None] + offset)
    buckets = (causal_relative_buckets if causal else relative_buckets)(distance, buckets=8, max_distance=10)
    weights = jax.random.normal(jax.random.key(0), (3, T, S))
    value, gradient = jax.jit(jax.value_and_grad(lambda bias, offset: jnp.vdot(bias(T, S, offset), weights)))(
        bias, offset
    )
    table = bias.bucket.embedding[...]
    np.testing.assert_array_equal(bias(T, S, offset), jnp.moveaxis(table[buckets], -1, 0))
    np.testing.assert_allclose(value, jnp.vdot(jnp.moveaxis(table[buckets], -1, 0), weights), rtol=1e-5, atol=1e-6)
    expected = jnp.zeros((8, 3)).at[buckets].add(jnp.moveaxis(weights, 0, -1))
    np.testing.assert_allclose(gradient.bucket.embedding[...], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.rotates
def test_a_relative_bias_looks_up_distances_not_pairs_and_counts_them_all():
    precision = with_precision(BLOCKS["relative"], compute="bfloat16").attention.precision
    bias = RelativeBias(RelativeConfig(), 2, causal=False, precision=precision, rngs=nnx.Rngs(0))
    count = jax.grad(lambda bias: bias(B, T).astype(jnp.float32).sum())
    np.testing.assert_array_equal(count(bias).bucket.embedding[...].sum(0), B * T)
    scatters = [e for e in equations(count, bias) if e.primitive.name.startswith("scatter")]
    assert scatters
    assert all(e.invars[1].aval.shape[0] < B + T for e in scatters)


def test_nothing_is_promoted_unsaid():
    """Under strict promotion, which refuses any two types that meet without a word: rotary, masks, biases, dropout."""
    cfg = transformer_block(embed=8, heads=2, inner=8, norm="rms", rotary=Rotary(), gated=True, dropout=0.1)
    block = nnx.eval_shape(lambda: Block(with_precision(cfg, compute="bfloat16"), rngs=nnx.Rngs(0)))
    x = jax.ShapeDtypeStruct((2, 4, 8), jnp.bfloat16)
    bias = jax.ShapeDtypeStruct((2, 4, 4), jnp.bfloat16)

    def loss(block, x, bias):
        mask = Mask(causal=True, lengths=jnp.array([2, 4]))
        return block(x, mask=mask, bias=bias, key=jax.random.key(0)).sum(dtype=jnp.float32)

    with jax.numpy_dtype_promotion("strict"):
        slopes = jax.eval_shape(jax.grad(loss), block, x, bias)
    assert {leaf.dtype for leaf in jax.tree.leaves(slopes)} == {jnp.dtype("float32")}
