"""Losses of sentence encoders by hand, and what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.objective import (
    ContrastiveLoss,
    CoSENTLoss,
    LabelLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
    TripletLoss,
)


def batch(rows, **more):
    return {"inputs": {}, "weights": jnp.ones(rows), **more}


VECTORS = np.random.default_rng(0).normal(size=(3, 3, 4)).astype(np.float32)


def test_every_text_is_told_from_all_second_and_third_ones():
    unit = VECTORS / np.linalg.norm(VECTORS, axis=-1, keepdims=True)
    expected = 0.0
    for i in range(3):
        own = 20 * unit[i, 0] @ unit[i, 1]
        others = [20 * unit[i, 0] @ unit[j, c] for j in range(3) for c in (1, 2)]
        expected += np.log(np.exp(others).sum()) - own
    total, metrics = MultipleNegativesRankingLoss().over(jnp.asarray(VECTORS), batch(3))
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    assert metrics["count"] == 3


def test_vectors_may_be_compared_by_inner_products():
    scores = VECTORS[:, 0] @ np.concatenate([VECTORS[:, 1], VECTORS[:, 2]]).T
    expected = np.log(np.exp(0.5 * scores).sum(axis=1)).sum() - 0.5 * np.trace(scores)
    objective = MultipleNegativesRankingLoss(similarity="dot", scale=0.5)
    np.testing.assert_allclose(objective.over(jnp.asarray(VECTORS), batch(3))[0], expected, rtol=1e-5)


def test_a_text_that_is_the_second_of_several_rows_is_no_negative():
    tokens = jnp.asarray([[[1, 2], [3, 4], [5, 6]], [[7, 8], [3, 4], [9, 9]], [[1, 1], [2, 2], [3, 4]]])
    vectors = jnp.asarray(VECTORS).at[1, 1].set(VECTORS[0, 1]).at[2, 2].set(VECTORS[0, 1])
    total, metrics = MultipleNegativesRankingLoss().over(
        vectors, {"inputs": {"tokens": tokens}, "weights": jnp.ones(3)}
    )
    unit = np.asarray(vectors / jnp.linalg.norm(vectors, axis=-1, keepdims=True))
    shown = [
        [(0, 1), (2, 1), (0, 2), (1, 2)],
        [(1, 1), (2, 1), (0, 2), (1, 2)],
        [(j, c) for c in (1, 2) for j in range(3)],
    ]
    expected, right = 0.0, 0
    for i, columns in enumerate(shown):
        scores = {place: 20 * unit[i, 0] @ unit[place] for place in columns}
        expected += np.log(np.exp(list(scores.values())).sum()) - scores[i, 1]
        right += all(scores[i, 1] > each for place, each in scores.items() if place != (i, 1))
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    assert metrics["accuracy"] == right


def test_pairs_both_ways_are_what_a_contrastive_loss_makes_of_their_scores():
    pairs = jnp.asarray(VECTORS[:, :2])
    total, _ = MultipleNegativesRankingLoss(both_ways=True).over(pairs, batch(3))
    unit = pairs / jnp.linalg.norm(pairs, axis=-1, keepdims=True)
    scores = 20 * unit[:, 0] @ unit[:, 1].T
    expected, _ = ContrastiveLoss().over(scores, jnp.ones(3, bool), jnp.eye(3, dtype=bool))
    np.testing.assert_allclose(total, expected, rtol=1e-5)


def test_labels_that_are_alike_say_nothing_of_order():
    total, _ = CoSENTLoss().over(jnp.asarray(VECTORS[:, :2]), batch(3, labels=jnp.array([0.5, 0.5, 0.5])))
    assert total == 0


def test_what_makes_no_sense_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match=r"TripletLoss takes rows of 3 texts, tokens \[B, C, T\], got vectors \(3, 2"):
        TripletLoss().over(jnp.asarray(VECTORS[:, :2]), batch(3))
    with pytest.raises(ValueError, match="RankingLoss takes rows of at least 2 texts"):
        MultipleNegativesRankingLoss().over(jnp.asarray(VECTORS[:, 0]), batch(3))
    with pytest.raises(ValueError, match="widths must be at most that of vectors, 4, got"):
        MatryoshkaLoss(of=TripletLoss(), widths=(5,)).over(jnp.asarray(VECTORS), batch(3))
    with pytest.raises(ValueError, match="of must be a loss of vectors of sentences, got a LabelLoss"):
        MatryoshkaLoss(of=LabelLoss())
    with pytest.raises(ValueError, match=r"weights must be as many as widths, got \(1.0,\) for \(4, 2\)"):
        MatryoshkaLoss(of=TripletLoss(), widths=(4, 2), weights=(1.0,))
    with pytest.raises(ValueError, match="margin must be at least 0 and distance euclidean, manhattan or cosine"):
        TripletLoss(margin=-1.0)
    with pytest.raises(ValueError, match="scale must be positive, got 0"):
        CoSENTLoss(scale=0)
    with pytest.raises(ValueError, match=r"scale must be positive and similarity cosine or dot, got 20\.0 and 'sum'"):
        MultipleNegativesRankingLoss(similarity="sum")
