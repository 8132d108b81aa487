"""ViLT and LXMERT: what they see and do not see, published sizes, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.answer_head import answering
from flax_transformer.models.head import Classifier
from flax_transformer.models.multimodal.lxmert import LxmertPretraining, LxmertPretrainingConfig, lxmert_encoder
from flax_transformer.models.multimodal.vilt import Vilt, vilt_b32, vilt_b32_vqa, vilt_encoder
from flax_transformer.models.preset import abstract, find_preset
from flax_transformer.nn import StemConfig, with_fields
from flax_transformer.objective import LabelLoss, MaskedLoss

SMALL = vilt_encoder(vocab=30, length=8, image=12, patch=4, embed=16, heads=2, depth=2, inner=24)
REGIONS = with_fields(
    lxmert_encoder(region_depth=1, cross_depth=2, features=6), vocab=30, embed=16, heads=2, inner=24, depth=1
)
DRAW = np.random.default_rng(0)
TOKENS = jnp.asarray(DRAW.integers(4, 30, (2, 5)))
IMAGES = jnp.asarray(DRAW.normal(size=(2, 12, 16, 3)), jnp.float32)
LENGTHS = jnp.array([5, 3])


def build(config):
    return Vilt(config, rngs=nnx.Rngs(0))


def size(config):
    return sum(leaf.size for leaf in jax.tree.leaves(abstract(config)))


@pytest.mark.rotates
def test_sizes_are_those_of_the_checkpoints():
    assert size(vilt_b32().encoder) == 111_595_008 - 768 * 769  # with its pooler
    assert size(vilt_b32_vqa()) == 117_588_537
    assert size(find_preset("lxmert_base_uncased")().encoder) + 768 * 769 == 207_936_768


@pytest.mark.rotates
def test_padding_of_either_side_is_not_seen():
    model = build(SMALL)
    seen = jnp.ones((2, 12, 16), bool).at[1, :, 8:].set(False)
    before = model.hidden_states(TOKENS, images=IMAGES, lengths=LENGTHS, seen=seen)
    tokens, images = TOKENS.at[1, 3:].add(1), IMAGES.at[1, :, 8:].add(1.0)
    after = model.hidden_states(tokens, images=images, lengths=LENGTHS, seen=seen)
    places = np.array([0, 1, 2, 5, 6, 7, 10, 11, 14, 15])  # of the second row what is there
    np.testing.assert_allclose(before[0], after[0], atol=1e-6)
    np.testing.assert_allclose(before[1][places], after[1][places], atol=1e-6)
    moved = model.hidden_states(TOKENS, images=IMAGES.at[1, :, :8].add(1.0), lengths=LENGTHS, seen=seen)
    assert np.abs(moved[1][places] - before[1][places]).max() > 1e-3


@pytest.mark.rotates
def test_a_picture_beside_padding_is_the_picture_alone():
    model = build(SMALL)
    alone = model.hidden_states(TOKENS[:1], images=IMAGES[:1, :8, :8])
    seen = jnp.zeros((1, 12, 16), bool).at[:, :8, :8].set(True)
    beside = model.hidden_states(TOKENS[:1], images=IMAGES[:1], seen=seen)
    places = np.array([0, 1, 2, 3, 4, 5, 6, 7, 10, 11])
    np.testing.assert_allclose(beside[0][places], alone[0], atol=1e-5)


@pytest.mark.rotates
def test_vmap_is_the_batch_and_jit_is_eager():
    model = build(SMALL)
    whole = model.hidden_states(TOKENS, images=IMAGES, lengths=LENGTHS)
    rows = jax.vmap(lambda t, i, n: model.hidden_states(t, images=i, lengths=n))(TOKENS, IMAGES, LENGTHS)
    np.testing.assert_allclose(rows, whole, atol=1e-5)
    jitted = jax.jit(lambda m, t, i, n: m.hidden_states(t, images=i, lengths=n))(model, TOKENS, IMAGES, LENGTHS)
    np.testing.assert_allclose(jitted, whole, atol=1e-5)


@pytest.mark.rotates
def test_several_pictures_are_seen_one_by_one_and_told_apart():
    model = build(with_fields(SMALL, kinds=4))
    images = jnp.stack([IMAGES, IMAGES[::-1], IMAGES], axis=1)
    found = model.hidden_states(TOKENS, images=images, lengths=LENGTHS)
    assert found.shape == (2, 3, 5 + 1 + 12, 16)
    np.testing.assert_allclose(found[:, 0], model.hidden_states(TOKENS, images=IMAGES, lengths=LENGTHS), atol=1e-5)
    assert np.abs(found[:, 2] - found[:, 0]).max() > 1e-3
    with pytest.raises(ValueError, match="images of a text must be fewer than the kinds, got 3, 3 kinds"):
        build(with_fields(SMALL, kinds=3)).hidden_states(TOKENS, images=images)


@pytest.mark.rotates
@pytest.mark.parametrize("count", [None, 2])
def test_answers_are_learned(count):
    model = Classifier(answering(with_fields(SMALL, kinds=3), 4, images=count), rngs=nnx.Rngs(0))
    images = IMAGES if count is None else jnp.stack([IMAGES, IMAGES], axis=1)
    inputs = {"tokens": TOKENS, "lengths": LENGTHS, "images": images}
    batch = {"inputs": inputs, "labels": jnp.array([1, 3]), "weights": jnp.ones(2)}
    gradient = jax.grad(lambda model: LabelLoss()(model, batch)[0])(model)
    leaves = jax.tree_util.tree_leaves_with_path(gradient)
    silent = [jax.tree_util.keystr(path) for path, leaf in leaves if not np.abs(leaf).max() > 0]
    assert silent == []


@pytest.mark.rotates
def test_masked_tokens_are_guessed_with_the_picture():
    config = with_fields(vilt_b32(), vocab=30, max_length=8, image=(12, 12), patch=(4, 4), embed=16, heads=2, depth=1)
    from flax_transformer.models.encoder import MaskedLM

    model = MaskedLM(config, rngs=nnx.Rngs(0))
    batch = jax.tree.map(jnp.asarray, MaskedLM.example_batch(config, 2, 8))
    batch["inputs"]["images"] = jnp.zeros((2, 12, 12, 3))
    loss = lambda inputs: MaskedLoss()(model, {**batch, "inputs": inputs})[0]  # noqa: E731
    assert loss(batch["inputs"]) != loss({**batch["inputs"], "images": jnp.ones((2, 12, 12, 3))})


@pytest.mark.rotates
def test_a_stem_of_convolutions_stands_in_for_patches():
    stem = with_fields(SMALL, table_std=0.02)
    stem = type(SMALL)(**{**vars(stem), "patches": StemConfig(embed=16, image=(12, 12), inner=(8,), pool=False)})
    assert build(stem).hidden_states(TOKENS, images=IMAGES).shape == (2, 5 + 1 + 12, 16)


def regions(**more):
    draw = np.random.default_rng(1)
    features, boxes = draw.normal(size=(2, 4, 6)), draw.random((2, 4, 4))
    return {"features": jnp.asarray(features, jnp.float32), "boxes": jnp.asarray(boxes, jnp.float32)} | more


@pytest.mark.rotates
def test_sides_look_across_before_they_look_at_themselves():
    """Of the first block that joins them both directions see what the other was, with the same parameters."""
    model = REGIONS.build(nnx.Rngs(0))
    given, seen = regions(), jnp.ones((2, 4), bool).at[1, 2:].set(False)
    before = model.hidden_states(TOKENS, **given, lengths=LENGTHS, seen=seen)
    given["features"] = given["features"].at[1, 2:].add(1.0)
    after = model.hidden_states(TOKENS.at[1, 3:].add(1), **given, lengths=LENGTHS, seen=seen)
    places = np.array([0, 1, 2, 5, 6])
    np.testing.assert_allclose(before[1][places], after[1][places], atol=1e-6)
    given["features"] = given["features"].at[:, 0].add(1.0)
    assert np.abs(model.hidden_states(TOKENS, **given)[:, :5] - before[:, :5]).max() > 1e-3


@pytest.mark.rotates
def test_all_heads_of_pretraining_give_what_they_are_for():
    config = LxmertPretrainingConfig(encoder=REGIONS, answers=7, objects=5, attributes=3)
    model = LxmertPretraining(config, rngs=nnx.Rngs(0))
    hidden = model.hidden_states(TOKENS, **regions())
    assert model.output(hidden[:, :5]).logits().shape == (2, 5, 30)
    assert model.sentence(hidden).shape == (2, 2)
    assert model.answer(hidden).shape == (2, 7)
    guessed = model.predict_regions(hidden[:, 5:])
    assert {name: each.shape for name, each in guessed.items()} == {
        "objects": (2, 4, 5), "attributes": (2, 4, 3), "features": (2, 4, 6)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: with_fields(SMALL, kinds=1), "kinds must be at least 2, got 1"),
        (lambda: with_fields(REGIONS, features=0), "features must be at least 1, got 0"),
        (lambda: answering(SMALL, 0), "classes must be at least 1, got 0"),
        (lambda: LxmertPretrainingConfig(encoder=SMALL), "LXMERT is pre-trained with an encoder of its own"),
        (lambda: REGIONS.build(nnx.Rngs(0)).hidden_states(TOKENS, **regions(features=IMAGES[:, :4, :, 0])),
         "D must be 6, got 16: features has shape"),
    ],
)  # fmt: skip
def test_impossible_configs_and_inputs_are_refused(make, rule):
    with pytest.raises(ValueError, match=rule):
        make()
