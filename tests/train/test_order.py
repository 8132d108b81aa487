"""The order of layers that models say, and how far below the heads each parameter lies by it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.seq2seq import Seq2Seq, Seq2SeqConfig
from flax_transformer.nn import EmbeddingConfig, TrunkConfig, transformer_block
from flax_transformer.order import Layer, Part, Stack
from flax_transformer.parallel import path_name
from flax_transformer.train.finetune import unfreeze_gradually
from flax_transformer.train.lora import Adapted, LoraConfig, init_lora
from flax_transformer.train.optimizer import OptimizerConfig, make_optimizer
from flax_transformer.train.order import layer_distances
from flax_transformer.train.schedule import ScheduleConfig


def optimizer(**options):
    constant = ScheduleConfig(name="constant")
    return make_optimizer(OptimizerConfig(**{"schedule": constant, "learning_rate": 0.1, **options}), 100)


@functools.cache
def translator():
    block = {"embed": 16, "heads": 2, "inner": 32}
    config = Seq2SeqConfig(
        embedding=EmbeddingConfig(vocab=24, embed=16),
        encoder=TrunkConfig(block=transformer_block(**block), depth=2),
        decoder=TrunkConfig(block=transformer_block(**block, cross=True), depth=3),
        tied_output=False,
    )
    return Seq2Seq(config, rngs=nnx.Rngs(0))


def named(tree):
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


@pytest.mark.rotates
def test_distances_are_counted_from_the_heads():
    distances = {name: leaf.ravel().tolist() for name, leaf in named(layer_distances(translator())).items()}
    assert distances["head.token.embedding"] == [0]
    assert distances["decoder.blocks.cross.query.kernel"] == [3, 2, 1]
    assert distances["encoder.blocks.feedforward.up.bias"] == [5, 4]
    assert distances["embedding.token.embedding"] == [6]


def test_the_order_of_a_tree_that_cannot_say_it_is_told():
    tree = {
        "blocks": {"up": {"kernel": jnp.zeros((2, 3, 4))}},
        "token": {"embedding": jnp.zeros((5, 3))},
        "final_norm": {"scale": jnp.zeros(3)},
        "tower": {"kernel": jnp.zeros((3, 2))},
    }
    shown = lambda *order: {k: v.ravel().tolist() for k, v in named(layer_distances(tree, order)).items()}  # noqa: E731
    assert shown("token", Stack("blocks"), "final_norm", "tower") == {
        "blocks.up.kernel": [2, 1],
        "final_norm.scale": [0],
        "token.embedding": [3],
        "tower.kernel": [0],
    }
    assert shown("final_norm", Stack("blocks"), Stack("tower"), "token") == {
        "blocks.up.kernel": [5, 4],
        "final_norm.scale": [6],
        "token.embedding": [0],
        "tower.kernel": [3, 2, 1],
    }


class Side(nnx.Module):
    """Embeddings, a stack of layers, and a norm."""

    layer_order = ("embedding", Stack("blocks"), "norm")

    def __init__(self, depth):
        self.embedding, self.norm = nnx.Param(jnp.zeros((5, 3))), nnx.Param(jnp.zeros(3))
        self.blocks = nnx.Dict(up=nnx.Param(jnp.zeros((depth, 3, 4))))


class Sides(nnx.Module):
    """Two sides beside each other below a third one, with something in between, and a layer and a head above it."""

    layer_order = (Part("deep", "low"), "join", Part("over"), Layer("left", "right"), "head")

    def __init__(self):
        self.deep, self.low, self.over = Side(3), Side(2), Side(1)
        self.left, self.right, self.join, self.head = (nnx.Param(jnp.zeros(2)) for _ in range(4))


def distances(tree):
    return {name: leaf.ravel().tolist() for name, leaf in named(layer_distances(tree)).items()}


def test_parts_lie_on_top_of_each_other_or_beside():
    assert distances(Sides()) == {
        "deep.embedding": [6], "deep.blocks.up": [5, 4, 3], "deep.norm": [3],
        "low.embedding": [6], "low.blocks.up": [4, 3], "low.norm": [3],
        "join": [2],
        "over.embedding": [6], "over.blocks.up": [2], "over.norm": [2],
        "left": [1], "right": [1],
        "head": [0],
    }  # fmt: skip


def test_a_stack_may_be_a_list_and_layers_without_parameters_do_not_count():
    whole = Side(3)
    whole.blocks = nnx.List([nnx.Param(jnp.zeros(2)) for _ in range(3)])
    assert distances(whole) == {
        "embedding": [4], "blocks.0": [3], "blocks.1": [2], "blocks.2": [1], "norm": [0],
    }  # fmt: skip
    part = jax.tree_util.tree_map_with_path(lambda path, leaf: None if "blocks.1" in path_name(path) else leaf, whole)
    assert distances(part) == {"embedding": [3], "blocks.0": [2], "blocks.2": [1], "norm": [0]}


@pytest.mark.rotates
def test_low_rank_factors_lie_where_their_kernels_do():
    model = translator()
    lora = init_lora(model, LoraConfig(rank=2, pattern=r"up\.kernel$|token"), jax.random.key(0))
    found = distances(Adapted(model, lora))
    assert found["lora.decoder.blocks.feedforward.up.kernel.a"] == [3, 2, 1]
    assert found["lora.encoder.blocks.feedforward.up.kernel.b"] == [5, 4]
    assert found["lora.embedding.token.embedding.a"] == [6]
    only = optimizer(name="sgd", momentum=0.0, trainable=r"^lora\.", layer_decay=0.5, learning_rate=1.0)
    ones = jax.tree.map(jnp.ones_like, Adapted(model, lora))
    moved = named(only.update(ones, only.init(ones), ones)[0])
    np.testing.assert_allclose(moved["lora.decoder.blocks.feedforward.up.kernel.b"][:, 0, 0], [-0.125, -0.25, -0.5])
    assert not moved["base.decoder.blocks.feedforward.up.kernel"].any()


class Silent(nnx.Module):
    """Layers that nobody says anything of."""

    def __init__(self):
        self.blocks, self.head = nnx.Param(jnp.zeros((2, 3))), nnx.Param(jnp.zeros(3))


class Saying(Silent):
    """The same, with an order."""

    layer_order: tuple = (Stack("blocks"), "head")


class Around(nnx.Module):
    """A model of another one."""

    def __init__(self, inner, order):
        self.inner, self.head = inner, nnx.Param(jnp.zeros(3))
        self.layer_order = order


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (Silent(), r"a model must say the order of its layers, Silent does not: layer_order = \(.*flax_transformer"),
        ({"head": {"kernel": jnp.zeros((2, 2))}}, "a model must say the order of its layers, dict does not"),
        (Around(Silent(), (Part("inner"), "head")), r"Silent \(inner\) does not"),
        (Around(Saying(), ("inner", "head")), r"must be named as one, Part\('inner'\), got 'inner' alone"),
        (Around(Saying(), (Part("inner"),)), "every parameter must have a place .* head of Around has none"),
        (Around(Saying(), ("inner.blocks", "inner.head", "head")), "an order must have a layer, Around has none"),
        (Around(Saying(), (Stack("inner"), "head")), "one layer axis, got inner.blocks has 2, inner.head has 3"),
    ],
)
@pytest.mark.parametrize("options", [{"layer_decay": 0.5}, {"unfreeze_every": 2}])
def test_layers_that_cannot_be_told_are_refused(tree, message, options):
    with pytest.raises(ValueError, match=message):
        optimizer(**options).init(tree)


def test_layers_are_not_unfrozen_every_no_step():
    with pytest.raises(ValueError, match="every 1 or more steps, got 0"):
        unfreeze_gradually(0)
