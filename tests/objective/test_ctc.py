"""Connectionist temporal classification: against adding up every way there is, on sizes where that can be done."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.objective import CTCLoss
from flax_transformer.ops import Mask


class Scores:
    """A model whose scores are what it is given; of recordings of two samples a position."""

    def hidden_states(self, scores, lengths=None, key=None):
        return scores

    def output(self, hidden, key=None):
        return hidden

    def memory_mask(self, mask):
        return Mask(lengths=mask.lengths // 2)


def text_of(way, blank):
    """Leave out repetitions, then blanks."""
    return tuple(token for token, _ in itertools.groupby(way) if token != blank)


def by_hand(logits, label, blank):
    """Add up the probabilities of all ways that give a text."""
    shares = np.exp(np.asarray(jax.nn.log_softmax(logits), np.float64))
    ways = itertools.product(range(logits.shape[1]), repeat=len(logits))
    return -np.log(sum(
        np.prod([shares[place, token] for place, token in enumerate(way)])
        for way in ways if text_of(way, blank) == tuple(label)
    ))  # fmt: skip


def batch(logits, labels, weights=None, lengths=None):
    inputs = {"scores": jnp.asarray(logits)}
    if lengths is not None:
        inputs["lengths"] = jnp.asarray(lengths)
    weights = np.ones(np.shape(labels)) if weights is None else weights
    return {"inputs": inputs, "labels": jnp.asarray(labels), "weights": jnp.asarray(weights, jnp.float32)}


def draw(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32) * 2


@pytest.mark.rotates
@pytest.mark.parametrize("blank", [0, 2])
def test_the_loss_is_that_of_all_ways_there_are(blank):
    logits, tokens = draw(9, 4, 3), [token for token in range(3) if token != blank]
    labels = np.array([*itertools.product(tokens, repeat=2), *itertools.product(tokens, repeat=2)])[:8]
    for row, label in zip(logits, labels, strict=False):
        loss, metrics = CTCLoss(blank=blank)(Scores(), batch(row[None], label[None]))
        np.testing.assert_allclose(loss, by_hand(row, label, blank), rtol=1e-5)
        assert metrics["count"] == 1


@pytest.mark.rotates
def test_texts_and_sounds_of_several_lengths_are_as_each_alone():
    logits, labels = draw(3, 5, 3), np.array([[1, 2, 1], [2, 2, 0], [1, 0, 0]])
    counts, lengths = [3, 2, 1], [10, 8, 3]  # samples: 5, 4 and 1 positions
    weights = np.arange(3) < np.array(counts)[:, None]
    loss, metrics = CTCLoss()(Scores(), batch(logits, labels, weights, lengths))
    alone = [by_hand(logits[i, : lengths[i] // 2], labels[i, : counts[i]], 0) for i in range(3)]
    np.testing.assert_allclose(loss, sum(alone), rtol=1e-5)
    assert metrics["count"] == 3
    each = CTCLoss(mean_tokens=True)(Scores(), batch(logits, labels, weights, lengths))[0]
    np.testing.assert_allclose(each, sum(a / n for a, n in zip(alone, counts, strict=True)), rtol=1e-5)


@pytest.mark.rotates
def test_a_text_that_has_no_way_counts_nothing_and_has_no_gradient():
    logits = draw(2, 3, 3)
    given = batch(logits, [[1, 1], [1, 1]], lengths=[6, 4])  # equal tokens take a position between them
    loss = lambda scores: CTCLoss()(Scores(), {**given, "inputs": {**given["inputs"], "scores": scores}})[0]  # noqa: E731
    np.testing.assert_allclose(loss(given["inputs"]["scores"]), by_hand(logits[0], (1, 1), 0), rtol=1e-5)
    slope = jax.grad(loss)(given["inputs"]["scores"])
    assert np.isfinite(slope).all()
    assert slope[0].any()
    assert not slope[1].any()


@pytest.mark.rotates
def test_rows_that_fill_a_batch_count_nothing():
    logits, labels = draw(3, 5, 3), np.array([[1, 2], [2, 0], [0, 0]])
    weights, lengths = np.array([[1, 1], [1, 0], [0, 0]]), [10, 8, 0]
    loss, metrics = CTCLoss(mean_tokens=True)(Scores(), batch(logits, labels, weights, lengths))
    alone, count = CTCLoss(mean_tokens=True)(Scores(), batch(logits[:2], labels[:2], weights[:2], lengths[:2]))
    np.testing.assert_allclose(loss, alone, rtol=1e-6)
    assert metrics == count == {"count": 2}


def test_a_blank_that_is_no_token_is_refused():
    with pytest.raises(ValueError, match="blank must be a token, at least 0, got -1"):
        CTCLoss(blank=-1)


@pytest.mark.rotates
def test_rows_that_only_fill_a_batch_count_nothing_without_lengths():
    logits, labels = draw(3, 5, 4), np.array([[1, 2], [3, 3], [2, 1]])
    weights = np.array([[1, 1], [1, 1], [0, 0]])
    total, metrics = CTCLoss()(Scores(), batch(logits, labels, weights))
    alone, _ = CTCLoss()(Scores(), batch(logits[:2], labels[:2]))
    assert metrics["count"] == 2
    np.testing.assert_allclose(total, alone, rtol=1e-5)


@pytest.mark.rotates
@pytest.mark.parametrize("wrong", [-1, 0, 4])
def test_a_token_that_is_none_is_not_learned_in_silence(wrong):
    logits = draw(2, 5, 4)
    assert np.isnan(CTCLoss()(Scores(), batch(logits, [[1, wrong], [2, 1]]))[0])
    assert np.isfinite(CTCLoss()(Scores(), batch(logits, [[1, wrong], [2, 1]], [[1, 0], [1, 1]]))[0])
