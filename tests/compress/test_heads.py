"""Heads that are removed: importance is the slope of a gate's loss, and the rest computes the model without them."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.compress import head_importance, remove_heads
from flax_transformer.compress.heads import attentions_of, kept_heads
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import AttentionConfig, with_fields
from flax_transformer.nn.talking_heads import TalkingConfig
from flax_transformer.parallel import path_name
from flax_transformer.task.compression import fewer_heads_checkpoint, weigh_heads

pytestmark = pytest.mark.proves("kernels with zeros", "heads removed: 35 families, equal to the model without them")

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 40, (3, 12)))
GOLDEN = Path(__file__).parent.parent / "hub" / "golden"
PATH = "trunk.blocks.attention"


def gpt2(**changes):
    config = with_fields(gpt2_tiny(vocab=40, dropout=0.0), embed=16, heads=4, inner=24, depth=3)
    return with_fields(config, **changes).build(nnx.Rngs(0))


def loss(model, tokens):
    return -jnp.take_along_axis(jax.nn.log_softmax(model(tokens[:, :-1])), tokens[:, 1:, None], -1).sum()


def drawn(model, seed=0):
    """Return an importance of heads that is noise."""
    rng = np.random.default_rng(seed)
    return {
        path: jnp.asarray(rng.random(layer.out.kernel.shape[:-2]), jnp.float32)
        for path, layer in attentions_of(model).items()
    }


def without(model, kept):
    """Return a model whose heads, but for those that are kept, write zeros."""

    def mask(path, leaf):
        at = kept.get(path_name(path).removesuffix(".out.kernel"))
        if at is None or not path_name(path).endswith(".out.kernel"):
            return leaf
        seen = jnp.put_along_axis(jnp.zeros(leaf.shape[:-2]), at, 1.0, axis=-1, inplace=False)
        return leaf * seen[..., None, None]

    return jax.tree_util.tree_map_with_path(mask, model)


@pytest.mark.rotates
def test_importance_is_the_slope_of_the_loss_of_each_row():
    model = gpt2()
    found = head_importance(model, loss, [TOKENS[:2], TOKENS[2:]])[PATH]

    def scaled(gates, row):
        copy = jax.tree.map(lambda leaf: leaf, model)
        copy.trunk.blocks.attention.out.kernel = nnx.Param(
            copy.trunk.blocks.attention.out.kernel[...] * gates[..., None, None]
        )
        return loss(copy, row)

    slopes = np.zeros((3, 4))
    for row in TOKENS[:, None]:
        for at in np.ndindex(3, 4):
            step = np.zeros((3, 4), np.float32)
            step[at] = 1e-2
            slopes[at] += abs(float(scaled(1 + step, row)) - float(scaled(1 - step, row))) / 2e-2
    np.testing.assert_allclose(found, slopes / np.linalg.norm(slopes, axis=1, keepdims=True), atol=2e-2)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, rtol=1e-6)


@pytest.mark.rotates
@pytest.mark.parametrize("kv_heads", [None, 2])
def test_what_is_left_is_the_model_without_the_least_important_heads(kv_heads):
    model = gpt2(kv_heads=kv_heads)
    importance = head_importance(model, loss, [TOKENS])
    small, kept = remove_heads(model, 0.5, importance), kept_heads(model, 0.5, importance)
    attention = small.trunk.blocks.attention
    assert attention.query.kernel.shape == (3, 16, 2, 4)
    assert attention.key.kernel.shape == (3, 16, 2 if kv_heads is None else 1, 4)
    assert (small.cfg.block.attention.heads, small.cfg.block.attention.width) == (2, 4)
    np.testing.assert_allclose(small(TOKENS), without(model, kept)(TOKENS), rtol=1e-5, atol=1e-6)
    assert jnp.abs(small(TOKENS) - model(TOKENS)).max() > 1e-3
    for score, heads in zip(np.asarray(importance[PATH]), np.asarray(kept[PATH]), strict=True):
        if kv_heads is None:
            assert score[heads].min() >= np.delete(score, heads).max()
        else:
            assert heads.tolist() in ([0, 1], [2, 3])
            assert score[heads].sum() >= np.delete(score, heads).sum()


def detr_of_one_width():
    """Return a DETR whose sides have as many heads, as published ones have; those of the golden one differ."""
    model = with_fields(hub.load(GOLDEN / "detr").model.cfg, heads=4).build(nnx.Rngs(0))
    return hub.wrap(model, "DetrForObjectDetection")


@pytest.mark.rotates
def test_config_json_has_one_width_of_heads():
    whole = hub.load(GOLDEN / "detr")
    assert [whole.model.cfg.encoder.block.attention.width, whole.model.cfg.decoder.block.attention.width] == [2, 8]
    with pytest.raises(ValueError, match="one width for all heads, head_dim, where they are not D / N wide, got 2, 8"):
        fewer_heads_checkpoint(whole, 0.5, drawn(whole.model))


@pytest.mark.rotates
@pytest.mark.parametrize(
    "family",
    ["bert", *(pytest.param(each, marks=pytest.mark.slow) for each in ("qwen2", "mixtral", "t5", "clip", "longformer")),
     "wav2vec2", pytest.param("detr", marks=pytest.mark.slow)],
)  # fmt: skip
def test_the_export_says_how_many_there_are(family, tmp_path):
    whole = hub.load(GOLDEN / family) if family != "detr" else detr_of_one_width()
    importance = drawn(whole.model)
    small = fewer_heads_checkpoint(whole, 0.5, importance)
    hub.save(small, tmp_path)
    again = hub.load(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(again.model), jax.tree.leaves(small.model))
    with np.load(GOLDEN / family / "expected.npz") as arrays:
        given = {name.removeprefix("in_"): value for name, value in arrays.items() if name.startswith("in_")}
    masked = replace(whole, model=without(whole.model, kept_heads(whole.model, 0.5, importance)))
    moved = 0.0
    for one, other, before in zip(*(jax.tree.leaves(each(**given)) for each in (again, masked, whole)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5)
        moved = max(moved, np.abs(np.asarray(one) - np.asarray(before)).max())
    assert moved > 1e-2


def test_layers_with_the_same_positions_lose_the_same_heads():
    model = hub.load(GOLDEN / "t5").model
    kept = kept_heads(model, 0.5, drawn(model))
    for side in ("encoder", "decoder"):
        heads = np.asarray(kept[f"{side}.blocks.attention"])
        assert (heads == heads[:1]).all()
    assert remove_heads(model, 0.5, drawn(model)).encoder.relative.bucket.embedding.shape[1] == heads.shape[1]


@pytest.mark.rotates
@pytest.mark.parametrize("family", ["bert", "gpt2", "t5", "clip"])
def test_heads_of_checkpoints_are_weighed_without_labels(family):
    whole = hub.load(GOLDEN / family)
    with np.load(GOLDEN / family / "expected.npz") as arrays:
        given = {name.removeprefix("in_"): value for name, value in arrays.items() if name.startswith("in_")}
    found = weigh_heads(whole, [given])
    assert found.keys() == attentions_of(whole.model).keys()
    assert all((np.linalg.norm(each, axis=-1) > 0.99).all() for each in found.values())


@pytest.mark.rotates
def test_the_loss_of_a_writer_is_that_of_its_next_tokens():
    whole = hub.wrap(gpt2(), "GPT2LMHeadModel")
    found = weigh_heads(whole, [{"input_ids": np.asarray(TOKENS), "attention_mask": np.ones((3, 12), np.int32)}])
    np.testing.assert_allclose(found[PATH], head_importance(whole.model, loss, [TOKENS])[PATH], rtol=1e-4)


@pytest.mark.rotates
def test_what_cannot_be_is_refused():
    model = gpt2()
    for share in (0.0, 1.0):
        with pytest.raises(ValueError, match=r"heads that are removed must be in \(0, 1\)"):
            remove_heads(model, share, drawn(model))
    with pytest.raises(ValueError, match=rf"of 4 heads that have keys a share of 0\.1 is none, in {PATH}"):
        remove_heads(model, 0.1, drawn(model))
    with pytest.raises(ValueError, match=f"every head must have an importance, those of {PATH} have none"):
        remove_heads(model, 0.5, {})
    with pytest.raises(ValueError, match="calibration needs at least one batch, got none"):
        head_importance(model, loss, [])
    with pytest.raises(ValueError, match="heads are of attention, a Classifier has none"):
        head_importance(hub.load(GOLDEN / "resnet").model, loss, [TOKENS])
    for family, message in (
        ("swin", "must be said by the model's config alone: the first stage must have as many heads"),
        ("beit", r"must be said by the model's config, that of backbone\.shared\.table is not"),
    ):
        other = hub.load(GOLDEN / family).model
        with pytest.raises(ValueError, match=message):
            remove_heads(other, 0.5, drawn(other))
    bare = hub.wrap(model, "GPT2Model")
    with pytest.raises(ValueError, match="heads are weighed by the loss of classes or tokens, a GPT2Model gives"):
        weigh_heads(bare, [{"input_ids": np.asarray(TOKENS)}])


@pytest.mark.rotates
def test_a_layer_by_itself_loses_heads():
    layer = AttentionConfig(embed=8, heads=4).build(nnx.Rngs(0))
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, 5, 8)), jnp.float32)
    importance = head_importance(layer, lambda layer, x: (layer(x) ** 2).sum(), [x])
    small = remove_heads(layer, 0.25, importance)
    assert small.cfg == AttentionConfig(embed=8, heads=3, head_width=2)
    gone = int(np.argmin(importance[""]))
    layer.out.kernel[...] = layer.out.kernel[...].at[gone].set(0.0)
    np.testing.assert_allclose(small(x), layer(x), rtol=1e-5, atol=1e-6)


def test_heads_that_talk_stay():
    layer = TalkingConfig(embed=8, heads=4).build(nnx.Rngs(0))
    with pytest.raises(ValueError, match="what is removed must be said by the model's config, that of after is not"):
        remove_heads(layer, 0.5, drawn(layer))
