"""Scores rescaled by the nearest of both sides: by hand, and that more pairs find each other."""

import numpy as np
import pytest

from flax_transformer.metric.csls import csls


@pytest.mark.parametrize("neighbours", [1, 3, 50])
def test_each_score_is_rescaled_by_the_nearest_of_both_halves(neighbours):
    scores = np.random.default_rng(0).uniform(-1, 1, (7, 5))
    found = csls(scores, neighbours)
    for (row, column), score in np.ndenumerate(scores):
        near = [np.mean(sorted(each, reverse=True)[:neighbours]) for each in (scores[row], scores[:, column])]
        assert found[row, column] == pytest.approx(2 * score - sum(near))


def test_more_pairs_find_each_other():
    rng, found = np.random.default_rng(0), []
    for _ in range(20):
        first = rng.normal(size=(100, 8))
        second = first + rng.normal(size=first.shape)
        first, second = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (first, second))
        scores = first @ second.T
        found.append([(each.argmax(axis=1) == np.arange(100)).sum() for each in (scores, csls(scores))])
    plain, rescaled = np.mean(found, axis=0)
    assert rescaled > plain + 1  # of 100


def test_no_neighbours_are_refused():
    with pytest.raises(ValueError, match="neighbours must be at least 1, got 0"):
        csls(np.eye(3), 0)
