"""Neurons that are removed: the rest computes what the model computes without them, and config.json says the width."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.compress import narrow_model, observe
from flax_transformer.compress.narrow import neurons_left
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import with_fields
from flax_transformer.nn.experts import ExpertsConfig
from flax_transformer.nn.feedforward import FeedForwardConfig
from flax_transformer.task.compression import narrow_checkpoint

pytestmark = pytest.mark.proves("kernels with zeros", "neurons removed: 40 families, equal to the model without them")

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 40, (3, 12)))
GOLDEN = Path(__file__).parent.parent / "hub" / "golden"


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "gated"])
def model(request):
    config = with_fields(gpt2_tiny(vocab=40, dropout=0.0), embed=16, heads=2, inner=24, depth=3, gated=request.param)
    return config.build(nnx.Rngs(0))


@pytest.mark.rotates
@pytest.mark.parametrize("calibrated", [False, True])
def test_what_is_left_is_the_model_without_the_least_important_neurons(model, calibrated):
    statistics = observe(model, lambda m, t: m(t), [TOKENS]) if calibrated else None
    small = narrow_model(model, 0.25, statistics)
    down, left = (each.trunk.blocks.feedforward.down.kernel[...] for each in (model, small))
    assert left.shape == (3, 18, 16)
    assert small.cfg.block.feedforward.inner == 18
    kept = jnp.stack([(whole[:, None] == part[None]).all(-1).any(-1) for whole, part in zip(down, left, strict=True)])
    assert kept.sum(1).tolist() == [18] * 3
    without = jax.tree.map(lambda leaf: leaf, model)
    without.trunk.blocks.feedforward.down.kernel = nnx.Param(jnp.where(kept[..., None], down, 0))
    np.testing.assert_allclose(small(TOKENS), without(TOKENS), rtol=1e-5, atol=1e-6)
    if calibrated:
        sizes = jnp.linalg.norm(down, axis=-1) * statistics["trunk.blocks.feedforward.down.kernel"].magnitude
        for mask, size in zip(kept, sizes, strict=True):
            assert size[mask].min() >= size[~mask].max()


@pytest.mark.rotates
@pytest.mark.parametrize(
    "family",
    ["bert", "llama"]
    + [pytest.param(each, marks=pytest.mark.slow) for each in ("t5", "bart", "vit", "clip", "swin", "whisper")],
)  # fmt: skip
def test_the_export_says_how_wide_it_is(family, tmp_path):
    whole = hub.load(GOLDEN / family)
    small = narrow_checkpoint(whole, 0.5)
    hub.save(small, tmp_path)
    again = hub.load(tmp_path)
    assert again.config["architectures"] == whole.config["architectures"]
    assert again.config.get("id2label") == whole.config.get("id2label")
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(each.model)) for each in (whole, again)]
    assert sizes[1] < sizes[0]
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(again.model), jax.tree.leaves(small.model))
    with np.load(GOLDEN / family / "expected.npz") as arrays:
        given = {name.removeprefix("in_"): value for name, value in arrays.items() if name.startswith("in_")}
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(again(**given)))


@pytest.mark.rotates
def test_what_cannot_be_is_refused(model):
    for share in (0.0, 1.0, -0.1):
        with pytest.raises(ValueError, match=r"neurons that are removed must be in \(0, 1\)"):
            narrow_model(model, share)
    with pytest.raises(ValueError, match="neurons are of feed-forward layers, a Classifier has none"):
        narrow_model(hub.load(GOLDEN / "resnet").model, 0.5)
    with pytest.raises(
        ValueError, match=r"what is removed must be said by the model's config, that of backbone\.stage1"
    ):
        narrow_model(hub.load(GOLDEN / "convnext").model, 0.5)
    assert neurons_left(3, 0.99) == 1


def test_layers_of_experts_stay():
    experts = ExpertsConfig(embed=8, inner=16, experts=4)
    with pytest.raises(ValueError, match="neurons are of feed-forward layers, a Experts has none"):
        narrow_model(experts.build(nnx.Rngs(0)), 0.5)


def test_a_layer_by_itself_is_narrowed():
    layer = FeedForwardConfig(embed=8, inner=16).build(nnx.Rngs(0))
    statistics = observe(layer, lambda layer, x: layer(x), [jnp.ones((2, 8))])
    small = narrow_model(layer, 0.5, statistics)
    assert small.cfg.inner == 8
    assert small.down.kernel.shape == (8, 8)


@pytest.mark.rotates
def test_it_is_differentiated_as_any_other(model):
    small = narrow_model(model, 0.5)
    gradient = jax.grad(lambda m: (m(TOKENS) ** 2).mean())(small)
    assert replace(small.cfg) == gradient.cfg
