import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_transformer.data import shuffled
from flax_transformer.data.text import MLMMasking, NextSentence, WordIds, sentence_bounds

CLS, SEP = 1, 2


def corpus(sizes):
    """Documents whose token 1000·d + k is the k-th of document d."""
    documents = []
    for number, document in enumerate(sizes, start=1):
        at = np.cumsum([0, *document])
        documents.append([list(range(1000 * number + a, 1000 * number + b)) for a, b in itertools.pairwise(at)])
    return documents


def make(sizes, **options):
    sentences, documents = sentence_bounds(corpus(sizes))
    options = {"length": 16, "cls": CLS, "sep": SEP, "short": 0.2, **options}
    return NextSentence(sentences=sentences, documents=documents, **options)


def parts(example):
    tokens, types = example["tokens"], example["types"]
    marks = np.flatnonzero(tokens == SEP)
    assert tokens[0] == CLS
    assert len(marks) == 2
    assert marks[1] == len(tokens) - 1
    assert types.tolist() == [0] * (marks[0] + 1) + [1] * (marks[1] - marks[0])
    return tokens[1 : marks[0]], tokens[marks[0] + 1 : marks[1]]


SIZES = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=6), min_size=2, max_size=5)


@settings(max_examples=100)
@given(SIZES, st.integers(5, 30), st.integers(0, 999))
def test_labels_tell_the_truth_and_pairs_fit(sizes, length, seed):
    if all(len(document) < 2 for document in sizes):
        with pytest.raises(ValueError, match="must have a second sentence"):
            make(sizes, length=length)
        return
    pairs = make(sizes, length=length)
    rng = np.random.default_rng(seed)
    for start in pairs.starts:
        example = pairs(start, rng)
        first, second = parts(example)
        assert len(first) >= 1
        assert len(second) >= 1
        assert len(example["tokens"]) <= length
        for side in (first, second):  # consecutive tokens of one document
            assert (np.diff(side) == 1).all()
        same = first[0] // 1000 == second[0] // 1000
        assert same == (example["next_sentence"] == 0)
        if same:
            assert second[0] > first[-1]


def test_without_truncation_the_next_stretch_begins_where_the_first_ends():
    pairs = make([[3, 2, 4], [5, 5]], length=64, short=0.0)
    rng, labels = np.random.default_rng(0), []
    for start in pairs.starts * 50:
        example = pairs(start, rng)
        first, second = parts(example)
        labels.append(example["next_sentence"])
        if not labels[-1]:
            assert second[0] == first[-1] + 1
            assert second[-1] % 1000 in (8, 9)  # to the end of the document
    assert pairs.starts == [0, 1, 3]
    assert 0 < sum(labels) < len(labels)


def test_half_of_the_pairs_are_random_and_every_other_document_serves():
    pairs = make([[3] * 10, [3] * 10, [3] * 10, [3]], length=20)
    rng, random = np.random.default_rng(0), []
    for _ in range(4000):
        example = pairs(12, rng)
        random.append(int(parts(example)[1][0] // 1000) if example["next_sentence"] else 0)
    counts = np.bincount(random, minlength=5)
    assert abs(counts[0] - 2000) < 5 * np.sqrt(1000)
    assert counts[2] == 0
    assert (np.abs(counts[[1, 3, 4]] - counts[1:].sum() / 3) < 5 * np.sqrt(450)).all()


def test_long_pairs_are_cut_at_both_ends_and_fairly():
    pairs = make([[100, 100], [100, 5]], length=43, short=0.0)
    rng = np.random.default_rng(0)
    cut = [parts(pairs(0, rng)) for _ in range(100)]
    assert all(len(first) + len(second) == 40 for first, second in cut)
    assert all(len(first) == 20 for first, second in cut if second[0] // 1000 == 1)
    fronts = [int(first[0]) - 1000 for first, _ in cut]
    assert 30 < np.mean(fronts) < 50
    assert min(fronts) < max(fronts)


def test_short_pairs_come_with_their_share():
    pairs = make([[1] * 100, [1] * 100], length=43, short=0.3)
    rng = np.random.default_rng(0)
    sizes = np.array([len(pairs(0, rng)["tokens"]) for _ in range(2000)])
    assert abs((sizes < 43).mean() - 0.3) < 0.1


def test_pairs_go_on_into_the_masked_language_model():
    pairs = make([[5] * 4, [6] * 3])
    masked = MLMMasking(vocab_size=4000, mask=3, special=(0, CLS, SEP), words="words")
    examples = shuffled(pairs.starts, pairs, WordIds(continuing=(1001, 1002), special=(CLS, SEP)), masked, seed=1)
    for index in range(20):
        example = examples[index]
        assert example.keys() == {"tokens", "types", "next_sentence", "labels", "weights"}
        assert example["weights"].sum() >= 1
        parts({**example, "tokens": example["labels"]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"documents": np.array([0, 5])}, "over at least 2 documents, got [0 5]"),
        ({"documents": np.array([0, 2, 2, 5])}, "bounds must rise"),
        ({"documents": np.array([0, 2, 4])}, "5 sentences"),
        ({"length": 4}, "length must hold 3 marks and 2 tokens"),
        ({"sentences": sentence_bounds([[[1], [2], []], [[3], [4]]])[0]}, "sentences must have tokens, got none in 2"),
    ],
)
def test_broken_corpora_are_refused(change, message):
    sentences, documents = sentence_bounds(corpus([[1, 1, 1], [1, 1]]))
    with pytest.raises(ValueError, match=re.escape(message)):
        NextSentence(**{"sentences": sentences, "documents": documents, "length": 16, "cls": CLS, "sep": SEP, **change})
