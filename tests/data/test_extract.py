"""Extracts: the oracle against all choices, TextRank against its equation, trigrams, and how rows are laid out."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_transformer.data.text.extract import (
    choose,
    lead,
    ngrams,
    oracle,
    query_similarity,
    sentence_rows,
    text_rank,
    text_rank_scores,
    words_of,
)

pytestmark = pytest.mark.proves("extractive summaries", "oracle = all choices, layout of [CLS] and segments")

SENTENCES = st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=5).map(" ".join), min_size=1, max_size=5)


def rouge_sum(sentences, chosen, summary):
    """Return ROUGE-1 + ROUGE-2, F-measures, counted one by one."""
    total = 0.0
    for n in (1, 2):
        found = [gram for i in chosen for gram in ngrams(words_of(sentences[i]), n)]
        wanted = ngrams(words_of(summary), n)
        left, overlap = list(wanted), 0
        for gram in found:
            if gram in left:
                left.remove(gram)
                overlap += 1
        total += 2 * overlap / max(len(found) + len(wanted), 1)
    return total


@given(SENTENCES, st.lists(st.sampled_from("abcde"), min_size=1, max_size=6).map(" ".join), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_the_oracle_is_greedy_over_all_choices(sentences, summary, count):
    chosen, best = [], 0.0
    for _ in range(count):
        scores = {i: rouge_sum(sentences, [*chosen, i], summary) for i in range(len(sentences)) if i not in chosen}
        top = max(scores.values(), default=0.0)
        if top <= best + 1e-12:
            break
        chosen.append(next(i for i, score in scores.items() if score >= top - 1e-12))
        best = top
    found = oracle(sentences, summary, count)
    assert rouge_sum(sentences, found, summary) == pytest.approx(best)
    assert len(found) <= count
    if count == 1:  # then no choice is better
        assert best == pytest.approx(max(rouge_sum(sentences, [i], summary) for i in range(len(sentences))))


def test_the_oracle_of_few_sentences_finds_the_best_of_all_choices():
    sentences, summary = ["the cat sat", "a dog ran home", "it was dark", "the dog slept"], "the cat sat and a dog ran"
    choices = [each for n in (1, 2, 3) for each in itertools.combinations(range(4), n)]
    assert tuple(oracle(sentences, summary, 3)) == max(choices, key=lambda each: rouge_sum(sentences, each, summary))
    assert oracle(sentences, "zebra", 3) == []


def test_text_rank_is_the_walk_that_stays_as_it_is():
    sentences = ["red fox runs far", "red fox sleeps", "blue whale swims", "the fox runs home"]
    ranks = text_rank_scores(sentences)
    n, step = len(sentences), np.zeros((4, 4))
    for i, j in itertools.permutations(range(n), 2):
        a, b = words_of(sentences[i]), words_of(sentences[j])
        step[i, j] = len({*a} & {*b}) / (np.log(len(a)) + np.log(len(b)))
    step = np.array([row / row.sum() if row.sum() else np.full(n, 1 / n) for row in step])
    values, vectors = np.linalg.eig((0.15 / n + 0.85 * step).T)
    expected = np.real(vectors[:, np.argmax(np.real(values))])
    np.testing.assert_allclose(ranks, expected / expected.sum(), atol=1e-6)
    assert 2 not in text_rank(sentences, 2)


def test_what_is_like_the_query_is_chosen():
    scores = query_similarity("Who pays the rent?", ["We ate.", "Ann pays the rent.", "The end."])
    assert scores.argmax() == 1
    assert scores[0] == 0


def test_repeated_trigrams_are_left_out():
    sentences = ["we meet at noon today", "tomorrow we meet at three", "no one came", "we meet"]
    scores = np.array([0.9, 0.8, 0.1, 0.2])
    assert choose(scores, sentences, 3) == [0, 2, 3]
    assert choose(scores, sentences, 3, block=False) == [0, 1, 3]
    assert lead(sentences, 9) == [0, 1, 2, 3]


TOKENS = st.lists(st.integers(10, 99), max_size=9)


@given(TOKENS, st.lists(TOKENS, min_size=1, max_size=12), st.integers(12, 30))
@settings(max_examples=80, deadline=None)
def test_every_sentence_is_in_one_row_behind_its_mark(query, sentences, length):
    rows = sentence_rows(query, sentences, cls=1, sep=2, length=length)
    assert [number for row in rows for number in row.sentences] == list(range(len(sentences)))
    for row in rows:
        assert len(row.tokens) == len(row.types) <= length
        assert [row.tokens[mark] for mark in row.marks] == [1] * len(row.marks)
        start = row.marks[0]
        assert row.tokens[:start] == ([1, *query[: length // 2 - 2], 2] if query else [])
        assert set(row.types[:start]) <= {0}
        for at, (mark, number) in enumerate(zip(row.marks, row.sentences, strict=True)):
            end = [*row.marks, len(row.tokens)][at + 1]
            inside = row.tokens[mark + 1 : end - 1]
            assert inside == sentences[number][: len(inside)]
            assert len(inside) == min(len(sentences[number]), length - start - 2)
            assert row.tokens[end - 1] == 2
            assert set(row.types[mark:end]) == {(at + bool(query)) % 2}


def test_a_row_without_room_is_refused():
    with pytest.raises(ValueError, match="room for a sentence with its marks, got length=2"):
        sentence_rows([], [[5]], cls=1, sep=2, length=2)
