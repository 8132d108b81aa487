"""Edits of texts: against trying all ways there are, and by examples worked out by hand."""

from functools import cache

import numpy as np
import pytest

from flax_transformer.metric.edit_distance import Edits, edits, letter_edits, word_edits


def every_way(reference, hypothesis):
    """Return the errors, the substitutions, deletions and insertions of all ways."""

    @cache
    def ways(i, j):
        if i == len(reference) and j == len(hypothesis):
            return {(0, 0, 0)}
        found = set()
        if i < len(reference) and j < len(hypothesis):
            wrong = reference[i] != hypothesis[j]
            found |= {(s + wrong, d, n) for s, d, n in ways(i + 1, j + 1)}
        if i < len(reference):
            found |= {(s, d + 1, n) for s, d, n in ways(i + 1, j)}
        if j < len(hypothesis):
            found |= {(s, d, n + 1) for s, d, n in ways(i, j + 1)}
        return found

    return ways(0, 0)


def test_edits_are_the_fewest_of_all_ways_there_are_and_one_of_them():
    rng = np.random.default_rng(0)
    for _ in range(200):
        one, other = (tuple(rng.integers(3, size=rng.integers(7)).tolist()) for _ in range(2))
        ways, found = every_way(one, other), edits(one, other)
        assert found[:3] in ways
        assert sum(found[:3]) == min(map(sum, ways))
        assert found.substitutions == max(way[0] for way in ways if sum(way) == sum(found[:3]))
        assert found.length == len(one)


@pytest.mark.parametrize(
    ("said", "heard", "expected"),
    [
        ("", "", Edits(0, 0, 0, 0)),
        ("", "one two", Edits(0, 0, 2, 0)),
        ("one two", "", Edits(0, 2, 0, 2)),
        ("one two three", "one three", Edits(0, 1, 0, 3)),
    ],
)
def test_words_by_hand(said, heard, expected):
    assert word_edits([said], [heard]) == expected


def test_a_rate_is_of_all_words_together():
    found = word_edits(["a b c d e f", "g"], ["a b c d e f", "h"])
    assert found.rate == 1 / 7
    assert letter_edits(["ab"], ["b"]).rate == 1 / 2
    assert word_edits([""], [""]).rate == 0
    assert word_edits([""], ["a"]).rate == 1
    assert word_edits(["a"], ["a b c"]).rate == 2


def test_a_text_without_its_twin_is_refused():
    with pytest.raises(ValueError, match="zip"):
        word_edits(["a", "b"], ["a"])
