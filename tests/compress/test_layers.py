"""Layers that are removed: the rest computes what the layers that are kept compute, and config.json says the depth."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.compress import keep_layers
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.models.text.transformer import transformer_base
from flax_transformer.models.text.universal import universal_tiny
from flax_transformer.nn import with_fields
from flax_transformer.task.compression import shallow_checkpoint

pytestmark = pytest.mark.proves("kernels with zeros", "layers removed: 38 families, equal to those that are kept")

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 40, (3, 12)))
GOLDEN = Path(__file__).parent.parent / "hub" / "golden"


def gpt2(**changes):
    config = with_fields(gpt2_tiny(vocab=40, dropout=0.0), embed=16, heads=2, inner=24, depth=4, **changes)
    return config.build(nnx.Rngs(0))


@pytest.mark.rotates
def test_what_is_left_is_the_model_whose_other_layers_write_nothing():
    model = gpt2()
    small = keep_layers(model, [0, 3])
    assert small.cfg.depth == small.trunk.cfg.depth == 2
    assert small.trunk.blocks.feedforward.down.kernel.shape == (2, 24, 16)
    blocks = jax.tree.map(lambda leaf: leaf, model).trunk.blocks
    for layer in (blocks.attention.out, blocks.feedforward.down):
        for part in (layer.kernel, layer.bias):
            part[...] = part[...].at[1:3].set(0.0)
    without = jax.tree.map(lambda leaf: leaf, model)
    without.trunk.blocks = blocks
    np.testing.assert_allclose(small(TOKENS), without(TOKENS), rtol=1e-5, atol=1e-6)
    assert jnp.abs(small(TOKENS) - model(TOKENS)).max() > 1e-2


@pytest.mark.rotates
def test_all_layers_are_the_model():
    model = gpt2()
    jax.tree.map(np.testing.assert_array_equal, keep_layers(model, range(4)), model)


@pytest.mark.rotates
def test_stacks_are_chosen_by_path():
    config = with_fields(transformer_base(40, dropout=0.0), embed=8, heads=2, inner=12, depth=3)
    model = config.build(nnx.Rngs(0))
    both, one = keep_layers(model, [0, 2]), keep_layers(model, [1], "decoder")
    assert (both.cfg.encoder.depth, both.cfg.decoder.depth) == (2, 2)
    assert (one.cfg.encoder.depth, one.cfg.decoder.depth) == (3, 1)
    for small, stack, kept in ((both, "encoder", [0, 2]), (both, "decoder", [0, 2]), (one, "decoder", [1])):
        whole, left = (getattr(each, stack).blocks for each in (model, small))
        jax.tree.map(lambda a, b, kept=kept: np.testing.assert_array_equal(a[jnp.asarray(kept)], b), whole, left)
    assert one(TOKENS, TOKENS).shape == (3, 12, 40)


@pytest.mark.rotates
@pytest.mark.parametrize("family", ["bert", "llama", "qwen3", "t5", "vit", "clip", "wav2vec2"])
def test_the_export_says_how_deep_it_is(family, tmp_path):
    whole = hub.load(GOLDEN / family)
    small = shallow_checkpoint(whole, [1])
    hub.save(small, tmp_path)
    again = hub.load(tmp_path)
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(each.model)) for each in (whole, again)]
    assert sizes[1] < sizes[0]
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(again.model), jax.tree.leaves(small.model))
    with np.load(GOLDEN / family / "expected.npz") as arrays:
        given = {name.removeprefix("in_"): value for name, value in arrays.items() if name.startswith("in_")}
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(again(**given)))


def test_layers_that_differ_are_kept_where_they_may_be():
    alternate, falling = gpt2(window=(3, None)), gpt2(falling_scale=True)
    assert keep_layers(alternate, [2, 3]).cfg.depth == 2
    assert keep_layers(falling, [0, 1]).cfg.depth == 2
    for kept in ([0, 2], [1, 2], [0]):
        with pytest.raises(ValueError, match="layers of trunk take 2 windows in turn, and must still do so"):
            keep_layers(alternate, kept)
    with pytest.raises(ValueError, match="layers of trunk have scales by their number"):
        keep_layers(falling, [1, 2])


def test_what_cannot_be_is_refused():
    model = gpt2()
    for kept in ([], [1, 1], [2, 0]):
        with pytest.raises(ValueError, match="layers that are kept must be some numbers that ascend"):
            keep_layers(model, kept)
    for kept in ([0, 4], [-1, 0]):
        with pytest.raises(ValueError, match=r"layers of trunk must be in 0 … 3, got"):
            keep_layers(model, kept)
    with pytest.raises(ValueError, match="a Causal has none with 'encoder' in its path, there are: trunk"):
        keep_layers(model, [0], "encoder")
    with pytest.raises(ValueError, match="layers are of a stack, a Classifier has none, there are: none"):
        keep_layers(hub.load(GOLDEN / "resnet").model, [0])
    with pytest.raises(ValueError, match=r"must be a field of its config alone, that of backbone\.stages\.0 is none"):
        keep_layers(hub.load(GOLDEN / "swin").model, [0])
    one_block = with_fields(universal_tiny(40), embed=8, heads=2, inner=12)
    with pytest.raises(ValueError, match="layers are of a stack, a Seq2Seq has none"):
        keep_layers(one_block.build(nnx.Rngs(0)), [0])
