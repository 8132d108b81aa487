"""Trees of labels and masks in the shape of a model are taken by plain Optax, whatever the model is."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.models.preset import abstract, find_preset
from flax_transformer.nn import Block, transformer_block
from flax_transformer.parallel import path_name
from tests.contract.golden import GOLDEN

RULES = {"train": optax.sgd(1.0), "frozen": optax.set_to_zero()}
FAMILIES = {folder.name: folder for folder in GOLDEN}


def labelled(tree, pattern):
    return jax.tree_util.tree_map_with_path(lambda path, _: "train" if pattern in path_name(path) else "frozen", tree)


def pretrained():
    return hub.load(FAMILIES["vit"])


@pytest.mark.rotates
@pytest.mark.parametrize("make", [pretrained, lambda: pretrained().model, lambda: {"of": pretrained()}])
def test_labels_in_the_shape_of_a_model_freeze_it(make):
    model = make()
    for optimizer in (
        optax.multi_transform(RULES, labelled(model, "head")),
        optax.masked(optax.set_to_zero(), jax.tree.map(lambda label: label == "frozen", labelled(model, "head"))),
    ):
        ones = jax.tree.map(jnp.ones_like, model)
        updates, _ = jax.jit(optimizer.update)(ones, optimizer.init(model), model)
        moved = {path_name(p): bool(leaf.any()) for p, leaf in jax.tree_util.tree_leaves_with_path(updates)}
        assert {name for name, moves in moved.items() if moves} == {name for name in moved if "head" in name}


@pytest.mark.rotates
def test_labels_of_every_kind_of_model_are_labels():
    """But for models that cannot be called, which Optax takes as they are."""
    for name in ("gpt2_tiny", "transformer_tiny", "vit_tiny_patch16", "whisper_tiny"):
        model = abstract(find_preset(name)())
        labels = labelled(model, "norm")
        assert not callable(labels) or labels(model) is labels
        jax.eval_shape(optax.multi_transform(RULES, labels).init, model)


def test_a_model_that_is_called_with_another_is_still_refused():
    block = Block(transformer_block(embed=8, heads=2, inner=16), rngs=nnx.Rngs(0))
    labels = labelled(block, "norm")
    assert labels(block) is labels
    with pytest.raises((TypeError, ValueError, AttributeError)):
        block(block)
    np.testing.assert_equal(np.shape(block(jnp.ones((1, 3, 8)))), (1, 3, 8))
