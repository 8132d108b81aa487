"""Two lists matched one to one: beside all permutations, and that more pairs are found than one by one."""

from itertools import permutations

import numpy as np
import pytest

from flax_transformer.metric.matching import matched, one_to_one


@pytest.mark.parametrize("seed", range(5))
def test_no_other_matching_scores_more(seed):
    random = np.random.default_rng(seed)
    scores, belong = random.normal(size=(6, 6)), np.eye(6, dtype=bool)[random.permutation(6)]
    best = max(permutations(range(6)), key=lambda columns: scores[np.arange(6), columns].sum())
    assert matched(scores, belong) == pytest.approx(belong[np.arange(6), best].mean())


def test_more_pairs_are_found_than_one_by_one():
    random, found = np.random.default_rng(0), []
    for _ in range(20):
        first = random.normal(size=(100, 8))
        second = first + 0.5 * random.normal(size=first.shape)
        first, second = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (first, second))
        scores = first @ second.T
        found.append([(scores.argmax(axis=1) == np.arange(100)).mean(), matched(scores, np.eye(100, dtype=bool))])
    alone, together = np.mean(found, axis=0)
    assert together > alone + 0.02


@pytest.mark.parametrize("belong", [np.ones((2, 2), bool), np.zeros((2, 2), bool), np.eye(3, dtype=bool)[:2]])
def test_halves_of_none_or_several_are_refused(belong):
    assert not one_to_one(belong)
    with pytest.raises(ValueError, match="each half must belong to one of the other list, got"):
        matched(np.zeros(belong.shape), belong)


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="scores"):
        matched(np.full((2, 2), np.nan), np.eye(2, dtype=bool))
