"""Layers of a stack against the same layers apart, for every optimizer; and how a parameter tells its layers."""

import functools
import math
from typing import get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from flax_transformer.models.seq2seq import Seq2Seq, Seq2SeqConfig
from flax_transformer.nn import Block, EmbeddingConfig, TrunkConfig, init_stack, layer, transformer_block
from flax_transformer.nn.batch_norm import BatchNorm
from flax_transformer.nn.conv import ConvConfig
from flax_transformer.order import Stack
from flax_transformer.parallel import path_name
from flax_transformer.train.lora import Adapted, LoraConfig, init_lora, merge_lora
from flax_transformer.train.optimizer import OptimizerConfig, make_optimizer
from flax_transformer.train.parameter_axis import Axes, parameter_axes, per_layer
from flax_transformer.train.schedule import ScheduleConfig
from tests.shares import only

NAMES = get_type_hints(OptimizerConfig)["name"].__args__
WIDE = 128  # from here on adafactor keeps rows and columns


class Layer(nnx.Module):
    """A layer of one's own: heads, a projection that is flat under a name that elsewhere has heads, raw parameters."""

    def __init__(self, *, rngs):
        self.query = nnx.LinearGeneral(WIDE, (4, WIDE // 4), rngs=rngs)
        self.out = nnx.LinearGeneral((4, WIDE // 4), WIDE, axis=(-2, -1), use_bias=False, rngs=rngs)
        self.key = nnx.Linear(WIDE, WIDE + 2, rngs=rngs)
        self.mix = nnx.Conv(6, 5, (3,), rngs=rngs)
        self.norm = nnx.RMSNorm(WIDE, rngs=rngs)
        self.gain = nnx.Param(jnp.ones(7))


class Raw(nnx.Module):
    """A layer that holds nothing but arrays."""

    def __init__(self, *, rngs):
        self.weight = nnx.Param(jax.random.normal(rngs.params(), (WIDE, WIDE)))
        self.gain = nnx.Param(jnp.ones(5))


def optimizer(**options):
    constant = ScheduleConfig(name="constant")
    return make_optimizer(OptimizerConfig(**{"schedule": constant, "learning_rate": 0.1, **options}), 10)


def uneven(tree, depth, seed):
    """Random numbers in the shape of a stack, of another size in every layer."""
    random = np.random.default_rng(seed)
    size = 10.0 ** -np.arange(depth)
    draw = lambda leaf: random.normal(size=leaf.shape) * size.reshape(-1, *(1,) * (leaf.ndim - 1))  # noqa: E731
    return jax.tree.map(lambda leaf: jnp.asarray(draw(leaf), jnp.float32), tree)


def two_steps(transformation, params, *gradients):
    @jax.jit
    def run(params, gradients):
        state = transformation.init(params)
        for grads in gradients:
            updates, state = transformation.update(grads, state, params)
            params = optax.apply_updates(params, updates)
        return params

    return run(params, gradients)


class Tower(nnx.Module):
    """A module that says which of its parts is a stack."""

    layer_order = (Stack("layers"),)

    def __init__(self, layers):
        self.layers = layers


def assert_layers_move_apart(transformation, depth, name, stack):
    """A stack of some name, or None: in a `Tower`, takes the steps that its layers take apart."""
    trees = [uneven(stack, depth, seed) for seed in (1, 2, 3)]
    if name is None:
        found = two_steps(transformation, *map(Tower, trees)).layers
    else:
        found = two_steps(transformation, *({name: tree} for tree in trees))[name]
    parts = two_steps(transformation, *({f"part{i}": layer(tree, i) for i in range(depth)} for tree in trees))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    for i in range(depth):
        jax.tree.map(close, layer(found, i), parts[f"part{i}"])


@functools.cache
def tower():
    return init_stack(lambda rngs: Layer(rngs=rngs), 2, key=jax.random.key(0))


@pytest.mark.rotates
@pytest.mark.parametrize("name", only(NAMES, "muon"))
def test_a_stack_moves_as_its_layers_apart(name):
    options = {} if name == "adam" else {"weight_decay": 0.1}
    assert_layers_move_apart(optimizer(name=name, clip_norm=1.0, **options), 2, "tower", tower())


@pytest.mark.slow
def test_a_stack_of_blocks_moves_as_blocks_apart():
    config = transformer_block(embed=8, heads=4, kv_heads=2, inner=12, norm="rms", gated=True, qk_norm=1e-5)
    blocks = init_stack(lambda rngs: Block(config, rngs=rngs), 3, key=jax.random.key(0))
    assert_layers_move_apart(optimizer(name="adafactor"), 3, "body", blocks)


@pytest.mark.rotates
@pytest.mark.parametrize("pattern", only(["gain$", r"(query|out|key)\.kernel$"], r"(query|out|key)\.kernel$"))
def test_a_stack_moves_as_its_layers_apart_where_others_are_frozen(pattern):
    """Even where only raw parameters are left, in a stack that a module says it has."""
    assert_layers_move_apart(optimizer(name="adafactor", trainable=pattern), 2, None, tower())


@pytest.mark.rotates
def test_layers_that_are_arrays_alone_move_apart_in_a_stack_that_is_said():
    raw = init_stack(lambda rngs: Raw(rngs=rngs), 3, key=jax.random.key(0))
    assert_layers_move_apart(optimizer(name="adafactor"), 3, None, raw)
    factored = optax.scale_by_factored_rms(min_dim_size_to_factor=2)
    assert_layers_move_apart(per_layer(factored, (Stack("tower"),)), 3, "tower", raw)


@pytest.mark.slow
def test_multi_steps_and_injected_options_keep_layers_apart():
    inner = optax.inject_hyperparams(lambda rate: optax.chain(optimizer(name="adafactor"), optax.scale(rate)))(rate=0.5)
    assert_layers_move_apart(optax.MultiSteps(inner, 2).gradient_transformation(), 2, "tower", tower())


@pytest.mark.slow
@pytest.mark.parametrize(
    "transformation", [optax.scale_by_trust_ratio(), optax.clip_by_block_rms(0.1), optax.scale_by_param_block_norm()]
)
def test_what_looks_at_whole_parameters_sees_layers(transformation):
    assert_layers_move_apart(per_layer(transformation), 2, "tower", tower())


@pytest.mark.rotates
def test_adafactor_moves_a_kernel_as_the_alias_of_optax_moves_its_matrix():
    params, *gradients = (uneven(tower(), 2, seed) for seed in (0, 1, 2))
    found = two_steps(optimizer(name="adafactor"), params, *gradients)
    for name, matrix in (("query", (WIDE, WIDE)), ("out", (WIDE, WIDE)), ("key", (WIDE, WIDE + 2)), ("mix", (18, 5))):
        for i in range(2):
            pick = lambda tree, name=name, matrix=matrix, i=i: getattr(tree, name).kernel[...][i].reshape(matrix)  # noqa: E731
            expected = two_steps(optax.adafactor(0.1), *map(pick, (params, *gradients)))
            np.testing.assert_allclose(pick(found), expected, rtol=1e-4, atol=1e-6)


def test_adafactor_keeps_rows_and_columns_of_every_kernel():
    """Of a stack as large as a model of 300 million parameters, without making it."""
    config = transformer_block(embed=1024, heads=16, inner=4096, norm="rms", bias=False)
    model = nnx.eval_shape(lambda: init_stack(lambda rngs: Block(config, rngs=rngs), 24, key=jax.random.key(0)))
    count = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))  # noqa: E731
    parts = [
        24 * (math.prod(leaf.shape[1 : 1 + axes.inputs]) + math.prod(leaf.shape[1 + axes.inputs :]))
        for leaf, axes in zip(jax.tree.leaves(model), jax.tree.leaves(parameter_axes(model)), strict=True)
        if axes.inputs
    ]
    assert count(jax.eval_shape(optimizer(name="adafactor").init, model)) < 1.15 * sum(parts) < count(model) / 500


def test_every_parameter_of_an_encoder_and_decoder_tells_its_layers():
    block = {"embed": 16, "heads": 2, "inner": 32}
    config = Seq2SeqConfig(
        embedding=EmbeddingConfig(vocab=24, embed=16), encoder=TrunkConfig(block=transformer_block(**block), depth=2),
        decoder=TrunkConfig(block=transformer_block(**block, cross=True), depth=3),
    )  # fmt: skip
    model = nnx.eval_shape(lambda: Seq2Seq(config, rngs=nnx.Rngs(0)))
    axes = {path_name(path): its for path, its in jax.tree_util.tree_leaves_with_path(parameter_axes(model))}
    assert {name for name, its in axes.items() if its.layers == 1} == {n for n in axes if n.startswith(("enc", "dec"))}
    assert {its.layers for its in axes.values()} == {0, 1}
    assert axes["decoder.blocks.cross.key.kernel"] == Axes(1, 1, 2)
    assert axes["decoder.blocks.cross.key.bias"] == Axes(1, 0, 2)
    assert axes["encoder.blocks.attention.out.kernel"] == Axes(1, 2, 1)
    assert axes["encoder.blocks.feedforward_residual.norm.scale"] == Axes(1, 0, 1)
    assert axes["embedding.token.embedding"] == Axes(0, 1, 1)


def test_layers_of_layers_and_parts_of_a_module_are_told_too():
    inner = lambda rngs: init_stack(lambda r: Layer(rngs=r), 3, key=rngs.params())  # noqa: E731
    groups = nnx.eval_shape(lambda: init_stack(inner, 2, key=jax.random.key(0)))
    assert {its.layers for its in jax.tree.leaves(parameter_axes(groups))} == {2}
    plain = {"up": {"kernel": jnp.zeros((2, 3, 4)), "bias": jnp.zeros((2, 4))}, "norm": {"scale": jnp.zeros(3)}}
    told = parameter_axes({**plain, "out": {"kernel": jnp.zeros((3, 4))}})
    assert [told[n][k].layers for n, k in (("up", "kernel"), ("up", "bias"), ("norm", "scale"))] == [1, 1, 0]
    _, part, _ = nnx.split(tower(), lambda path, _: "query" in path, ...)
    assert {its.layers for its in jax.tree.leaves(parameter_axes(part))} == {1}


@pytest.mark.rotates
def test_low_rank_factors_move_apart_and_fit_flat_projections():
    stack = tower()
    config = LoraConfig(rank=2, pattern=r"(query|key|out)\.kernel$")
    lora = init_lora(stack, config, jax.random.key(0))
    assert lora["key.kernel"].a.shape == (2, WIDE, 2)
    assert lora["key.kernel"].b.shape == (2, 2, WIDE + 2)
    factors = jax.tree.map(lambda leaf: leaf + 0.1, lora)
    apart = merge_lora(layer(stack, 1), layer(factors, 1))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), layer(merge_lora(stack, factors), 1), apart)
    assert_layers_move_apart(optimizer(name="adafactor"), 2, "lora", {"query.kernel": lora["query.kernel"]})


class Window(nnx.Module):
    """A convolution, ours or Flax's, and a norm over a batch."""

    def __init__(self, conv, norm):
        self.conv, self.norm = conv, norm


@pytest.mark.rotates
@pytest.mark.parametrize(("window", "padding"), [((3, 3), 1), ((5,), 2)])
@pytest.mark.parametrize("name", ["muon", "adafactor"])
def test_a_convolution_of_ours_moves_as_one_of_flax(name, window, padding):
    """Its kernel is one matrix, and its bias one vector."""
    ours = Window(
        ConvConfig(channels=16, features=32, window=window, padding=padding).build(nnx.Rngs(0)), BatchNorm(32)
    )
    flax = Window(nnx.Conv(16, 32, window, rngs=nnx.Rngs(0)), nnx.BatchNorm(32, rngs=nnx.Rngs(0)))
    draw = lambda tree: jax.tree.map(  # noqa: E731
        lambda leaf: jnp.asarray(np.random.default_rng(leaf.size).normal(size=leaf.shape), jnp.float32), tree
    )
    moved = []
    for model in (ours, flax):
        updates, _ = optimizer(name=name).update(draw(model), optimizer(name=name).init(draw(model)), draw(model))
        moved.append(
            [updates.conv.kernel[...], updates.conv.bias[...], updates.norm.scale[...], updates.norm.mean[...]]
        )
    for found, expected in zip(*moved, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_a_kernel_of_a_window_without_a_word_follows_those_around_it():
    net = Window(nnx.Dict(kernel=nnx.Param(jnp.zeros((3, 3, 4, 5))), bias=nnx.Param(jnp.zeros(5))), BatchNorm(5))
    axes = {path_name(path): its for path, its in jax.tree_util.tree_leaves_with_path(parameter_axes(net))}
    assert axes["conv.kernel"] == Axes(0, 3, 1)
    assert axes["conv.bias"] == Axes(0, 0, 1)


def test_low_rank_factors_of_a_convolution_are_those_of_its_matrix():
    conv = ConvConfig(channels=4, features=6, window=(3, 3))
    make = lambda rngs: Window(conv.build(rngs), nnx.LayerNorm(6, rngs=rngs))  # noqa: E731
    blocks = init_stack(make, 2, key=jax.random.key(0))
    lora = init_lora(blocks, LoraConfig(rank=2, pattern="kernel$"), jax.random.key(0))
    assert lora["conv.kernel"].a.shape == (2, 3, 3, 4, 2)
    assert lora["conv.kernel"].b.shape == (2, 2, 6)
    axes = jax.tree.leaves(parameter_axes(Adapted(blocks, lora)).lora)
    assert axes == [Axes(1, 3, 1), Axes(1, 1, 1)]
