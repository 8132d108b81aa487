"""Matching with hard negatives: worked out one pair at a time, drawn as often as scores say, the same on any mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.multimodal.blip import blip_text, blip_vision
from flax_transformer.models.multimodal.grounded import GroundedConfig
from flax_transformer.models.multimodal.retrieval import Retrieval, RetrievalConfig
from flax_transformer.objective import ContrastiveLoss, MatchLoss, check_parts
from flax_transformer.objective.contrast import same_pairs
from flax_transformer.objective.match import hard_negatives

B = 5
CONFIG = RetrievalConfig(
    encoder=GroundedConfig(
        vision=blip_vision(image=8, patch=4, embed=8, heads=2, depth=1),
        text=blip_text(8, vocab=20, embed=12, heads=2, depth=1, length=8),
    ),
    width=6,
    scale=5.0,
)


@pytest.fixture(scope="module")
def model():
    return jax.tree.map(lambda x: 3 * x if x.ndim > 1 else x, Retrieval(CONFIG, rngs=nnx.Rngs(0)))


def pairs(rows=B, seed=0):
    draw = np.random.default_rng(seed)
    tokens, images = draw.integers(3, 20, (rows, 6)), draw.standard_normal((rows, 8, 8, 3), dtype=np.float32)
    return {"tokens": jnp.asarray(tokens), "images": jnp.asarray(images), "lengths": jnp.arange(rows) % 3 + 4}


def by_hand(model, inputs, present, pictures, texts):
    """Return the sum of the loss and of right guesses over what is told, one pair at a time."""
    losses, right = [], 0
    states = model.encoder.vision(inputs["images"])
    told = [(i, i, 1) for i in present]
    told += [(i, int(pictures[i]), 0) for i in present] + [(int(texts[i]), i, 0) for i in present]
    for text, picture, belongs in told:
        length = int(inputs["lengths"][text])
        hidden = model.encoder.text(inputs["tokens"][text : text + 1, :length], states[picture : picture + 1])
        logits = np.asarray(model.match_head(hidden))[0]
        losses.append(np.log(np.exp(logits).sum()) - logits[belongs])
        right += logits.argmax() == belongs
    return np.mean(losses), right / len(losses)


@pytest.mark.rotates
@pytest.mark.parametrize("key", [None, 3])
@pytest.mark.parametrize("absent", [(), (1, 4)])
def test_the_loss_is_that_of_each_pair_by_itself(model, key, absent):
    inputs = pairs()
    weights = jnp.asarray(np.isin(np.arange(B), absent, invert=True), jnp.float32)
    present = np.flatnonzero(weights)
    key = None if key is None else jax.random.key(key)
    total, metrics = MatchLoss(weight=0.5)(model, {"inputs": inputs, "weights": weights}, key=key)
    there = jax.tree.map(lambda x: x[present], inputs)
    contrast, plain = ContrastiveLoss()(model, {"inputs": there})
    scores = model.output(model.hidden_states(**inputs), limit=100.0)
    real = weights > 0
    others = real[:, None] & real & ~same_pairs({"inputs": inputs}, scores)
    keys = (None,) * 4 if key is None else jax.random.split(key, 4)
    pictures = np.asarray(hard_negatives(scores, others, keys[1]))
    texts = np.asarray(hard_negatives(scores.T, others, keys[2]))
    assert set(pictures[present]) | set(texts[present]) <= set(present)
    if key is None:  # the likeliest
        hidden = np.where(others, scores, -np.inf)
        np.testing.assert_array_equal(pictures, hidden.argmax(1))
        np.testing.assert_array_equal(texts, hidden.argmax(0))
    match, right = by_hand(model, inputs, present, pictures, texts)
    assert metrics["count"] == len(present)
    np.testing.assert_allclose(metrics["contrast_loss"], contrast, rtol=1e-4)
    np.testing.assert_allclose(metrics["match_loss"].value(), match, rtol=1e-4)
    np.testing.assert_allclose(metrics["match_accuracy"].value(), right, rtol=1e-5)
    np.testing.assert_allclose(total, contrast + 0.5 * len(present) * match, rtol=1e-4)
    for name in ("first_accuracy", "second_accuracy"):
        assert metrics[name] == plain[name]


def test_negatives_are_drawn_as_often_as_scores_say():
    scores = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)), jnp.float32)
    others = ~np.eye(4, dtype=bool)
    others[0, 3] = False
    keys = jax.random.split(jax.random.key(0), 20_000)
    drawn = np.asarray(jax.vmap(lambda key: hard_negatives(scores, jnp.asarray(others), key))(keys))
    found = np.stack([(drawn == each).mean(0) for each in range(4)], axis=1)
    chances = np.where(others, np.exp(scores), 0)
    np.testing.assert_allclose(found, chances / chances.sum(1, keepdims=True), atol=0.015)
    np.testing.assert_array_equal(found[~others], 0)


@pytest.mark.rotates
def test_the_same_key_draws_the_same_and_another_does_not(model):
    loss = jax.jit(lambda key: MatchLoss()(model, {"inputs": pairs(8)}, key=key)[0])
    first, second = jax.random.key(0), jax.random.key(1)
    assert loss(first) == loss(first) != loss(second)


@pytest.mark.rotates
def test_a_text_that_says_the_same_is_no_negative(model):
    inputs = pairs()
    twice = {**inputs, "tokens": inputs["tokens"].at[1:].set(inputs["tokens"][0])}
    assert same_pairs({"inputs": twice}, jnp.zeros((len(twice["tokens"]),) * 2)).all()
    _, metrics = MatchLoss()(model, {"inputs": twice}, key=jax.random.key(0))  # of which there are none left
    logits = model.match(twice["tokens"], model.hidden_states(**twice).states, lengths=twice["lengths"])
    np.testing.assert_allclose(metrics["match_loss"].total, -jax.nn.log_softmax(logits)[:, 1].sum(), rtol=1e-5)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"weight must be positive, got 0\.0"):
        MatchLoss(weight=0.0)
    with pytest.raises(ValueError, match="MatchLoss compares the rows of a batch, which must stay whole, got parts=2"):
        check_parts(MatchLoss(), 2, "parts")
