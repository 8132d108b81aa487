"""Every preset says the order of its layers and the axes of its parameters."""

import jax
import pytest

from flax_transformer.hub.registry import families
from flax_transformer.models.preset import abstract, presets
from tests.contract.golden import GOLDEN
from tests.contract.order import check_axes, check_order, told
from tests.shares import only

QUICK = (
    "ctc_translator_tiny", "evolved_transformer_small", "luong_lstm", "mask_predict_tiny", "rnn_search",
    "universal_adaptive", "videomae_pretraining",
)  # fmt: skip
"""Presets of models that no family of checkpoints has; those of the families are tried on golden checkpoints."""
TOWERS = ("clip", "siglip")


@pytest.mark.parametrize("name", only(presets(), *QUICK))
def test_a_preset_says_the_order_of_its_layers(name):
    model = abstract(presets()[name]())
    check_order(model, towers=name.startswith(TOWERS))
    check_axes(model)


@pytest.mark.slow
@pytest.mark.parametrize("folder", GOLDEN, ids=lambda folder: folder.name)
def test_every_architecture_of_a_family_says_the_order_of_its_layers(folder):
    from flax_transformer.hub.fields import Fields

    fields = Fields((folder / "config.json").read_text())
    family = families()[fields["model_type"]]
    family = family if family.composed is None else family.composed(fields)
    for name, architecture in family.architectures.items():
        model = abstract(architecture.config(fields))
        assert len(told(model)) == len(jax.tree.leaves(model)), name
