"""What every family draws for part of a batch, a microbatch of a pipeline, is what the whole batch draws for it."""

from dataclasses import fields, is_dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.preset import abstract, module_of
from flax_transformer.nn import with_fields
from flax_transformer.ops.row_random import rows_of
from tests.contract.golden import GOLDEN, load

RATES = ("attention_dropout", "activation_dropout", "branch_dropout", "dropout", "drop_path", "jitter")
ROWS, PART = 5, jnp.array([3, 0, 4])
COMPUTED = {"swin", "timesformer", "longformer", "led", "big_bird", "mixtral"}
"""Families whose sublayers lay rows out in another way than most; of the others `make test` tries the shapes alone."""
SHORT = {"longformer", "lxmert", "mpnet", "roberta", "whisper"}
"""Families whose golden checkpoints have few positions."""

FACTORS = {family: {"jitter": 1.5} for family in ("dinov3_vit", "timm_eva")}
"""What is called as a rate is, and is a factor of at least 1."""
REFUSED = {"mask2former": {"drop_path"}}
"""What parts of a family refuse to drop: every layer of Mask2Former's decoder answers."""

STILL = {"autoencoder-kl", "resnet"}
"""Families that draw nothing."""

pytestmark = pytest.mark.proves("dropout", "in parts of a batch as in the whole, in every family")


def names(config):
    """Name the fields of a config and of all in it."""
    own = {field.name for field in fields(config)}
    return own.union(*(names(value) for value in vars(config).values() if is_dataclass(value)))


def dropping(folder):
    """Return the config of a checkpoint with everything dropped now and then that it can drop."""
    config = load(folder).pretrained.model.cfg
    rates = (names(config) & {*RATES}) - REFUSED.get(folder.name, set())
    return with_fields(config, **dict.fromkeys(rates, 0.3) | FACTORS.get(folder.name, {}))


def shaken(config):
    """Make a model with noise on all parameters: of a new one, scales of sublayers may be zero."""
    model = config.build(nnx.Rngs(0))
    keys = iter(jax.random.split(jax.random.key(1), len(jax.tree.leaves(model))))
    return jax.tree.map(lambda leaf: leaf + 0.1 * jax.random.normal(next(keys), leaf.shape, leaf.dtype), model)


def numbers(tree):
    """Return what is computed, and not which positions are padding."""
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]


def inputs_of(config, folder):
    length = 16 if folder.name in SHORT else None
    return jax.tree.map(jnp.asarray, module_of(config).example_batch(config, ROWS, length)["inputs"])


def run(model, inputs):
    return model.hidden_states(**inputs, key=jax.random.key(7))


def parted(model, inputs):
    with rows_of(PART, ROWS):
        return run(model, jax.tree.map(lambda leaf: leaf[PART], inputs))


@pytest.mark.rotates
@pytest.mark.parametrize("folder", GOLDEN, ids=lambda folder: folder.name)
def test_all_that_is_drawn_has_the_rows_in_front(folder):
    config = dropping(folder)
    assert jax.tree.leaves(jax.eval_shape(parted, abstract(config), inputs_of(config, folder)))


@pytest.mark.rotates
@pytest.mark.parametrize(
    "folder",
    [pytest.param(f, marks=() if f.name in COMPUTED else pytest.mark.slow) for f in GOLDEN if f.name not in STILL],
    ids=lambda folder: folder.name,
)
def test_parts_draw_what_the_whole_draws(folder):
    """But of those that draw nothing."""
    config = dropping(folder)
    model = shaken(config)
    inputs = inputs_of(config, folder)
    whole, part = jax.jit(run)(model, inputs), jax.jit(parted)(model, inputs)
    still = jax.jit(lambda model, inputs: model.hidden_states(**inputs))(model, inputs)
    moved = [float(jnp.abs(a - b).max()) for a, b in zip(numbers(whole), numbers(still), strict=True)]
    assert max(moved) > 1e-3
    for ours, all_rows in zip(numbers(part), numbers(whole), strict=True):
        np.testing.assert_allclose(ours, all_rows[PART], atol=1e-5 * max(1, float(jnp.abs(all_rows).max())))
