"""Every preset says the order of its layers and the axes of its parameters."""

import json

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from flax_transformer.hub.registry import families
from flax_transformer.models.preset import abstract, presets
from flax_transformer.nn.module import Module
from flax_transformer.order import Stack
from flax_transformer.parallel import path_name
from flax_transformer.train.parameter_axis import parameter_axes
from tests.contract.golden import DECODERS, GOLDEN
from tests.contract.order import check_axes, check_order, told
from tests.shares import only

QUICK = (
    "ctc_translator_tiny", "evolved_transformer_small", "luong_lstm", "mask_predict_tiny", "rnn_search",
    "universal_adaptive", "videomae_pretraining",
)  # fmt: skip
"""Presets of models that no family of checkpoints has; those of the families are tried on golden checkpoints."""
TOWERS = ("clip", "siglip", "siglip2")


@pytest.mark.rotates
@pytest.mark.parametrize("name", only(presets(), *QUICK))
def test_a_preset_says_the_order_of_its_layers(name):
    model = abstract(presets()[name]())
    check_order(model, towers=name.startswith(TOWERS))
    check_axes(model)


@pytest.mark.slow
@pytest.mark.parametrize("folder", GOLDEN, ids=lambda folder: folder.name)
def test_every_architecture_of_a_family_says_the_order_of_its_layers(folder):
    from flax_transformer.hub.fields import Fields
    from flax_transformer.hub.stored_config import with_model_type

    fields = Fields.of(with_model_type(json.loads((folder / "config.json").read_text())))
    family = families()[fields["model_type"]]
    family = family if family.composed is None else family.composed(fields)
    for name, architecture in family.architectures.items():
        stated = {"is_decoder": name in DECODERS} if family.architectures.keys() & DECODERS else {}
        model = abstract(architecture.config(fields.updated(stated)))
        assert len(told(model)) == len(jax.tree.leaves(model)), name


def kernels(depth):
    """Make a stack of kernels that say their axes, as layers do."""
    return nnx.Dict(kernel=nnx.Param(jnp.zeros((depth, 8, 8)), out_sharding=("embed", "mlp"), eager_sharding=False))


class Stage(Module):
    layer_order = ("down", Stack("blocks"))

    def __init__(self, depth):
        self.down = nnx.Param(jnp.zeros(8))
        self.blocks = kernels(depth)


class Stages(Module):
    layer_order = ("entry", Stack("stages"), "bridge", Stack("top"), "norm")

    def __init__(self):
        self.entry, self.bridge, self.norm = (nnx.Param(jnp.zeros(8)) for _ in range(3))
        self.stages = nnx.List([Stage(2), Stage(1)])
        self.top = kernels(3)


def test_what_lies_between_the_stages_of_a_list_belongs_to_the_stage_above():
    found = told(Stages())
    assert [found[name] for name in ("entry", "stages.0.down", "stages.1.down", "bridge", "norm")] == [
        [7], [7], [4], [3], [0],
    ]  # fmt: skip


def test_what_is_beside_stacks_has_no_layers():
    model = Stages()
    names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(model)]
    found = dict(zip(names, jax.tree.leaves(parameter_axes(model)), strict=True))
    assert {name for name, axes in found.items() if axes.layers} == {name for name in names if "kernel" in name}
