"""Exercises: right answers, disjoint splits, the same draws every time."""

import re

import pytest

from flax_transformer.data.split import SPLITS
from flax_transformer.data.synthetic import TASKS, counting_texts, english, exercises, german, number_words, sums

VALUE = {english(n): n for n in range(2_000)}


def numbers_below_100(text):
    return [VALUE[word] for word in text.split()]


def right(task, source, target):
    if task == "translate":
        return source not in VALUE or german(VALUE[source]) == target
    if task in ("spell", "write"):
        digits, words = (source, target) if task == "spell" else (target, source)
        return english(int(digits)) == words
    if task == "add":
        a, b = source.split(" plus ")
        return VALUE[a] + VALUE[b] == VALUE[target]
    given, answer = numbers_below_100(source), numbers_below_100(target)
    return answer == (sorted(given) if task == "sort" else given[::-1])


def about(task, source):
    """Return what an exercise is about, whatever way it is put."""
    if task == "add":
        return frozenset(source.split(" plus "))
    if task == "sort":
        return frozenset(source.split())
    words = tuple(source.split())
    return min(words, words[::-1]) if task == "reverse" else source


@pytest.mark.parametrize("task", TASKS)
def test_answers_are_right(task):
    pairs = exercises(task, 300, seed=3)
    assert len(pairs) == 300
    assert all(right(task, **pairs[i]) for i in range(300))


@pytest.mark.parametrize("task", TASKS)
def test_splits_share_nothing_whatever_the_seeds(task):
    seen = [
        {about(task, source) for source in exercises(task, 150, seed=seed, split=split)["source"]}
        for seed, split in enumerate(SPLITS)
    ]
    assert all(len(each) == 150 for each in seen)
    assert len(set.union(*seen)) == 450


def test_the_seed_decides():
    first, again, other = (exercises("add", 20, seed=seed).fingerprint for seed in (1, 1, 2))
    assert first == again != other


def test_small_numbers_are_all_to_learn():
    words = {english(n) for n in range(100)}
    assert not words & {*exercises("translate", 200, split="test")["source"]}
    assert words <= {*exercises("translate", 3_000)["source"]}


def test_countings_have_equal_distances():
    for text in counting_texts(50):
        firsts = [n for n in range(200) if text.startswith(f"{english(n)} ")]
        steps = range(1, 41)
        assert any(text == " ".join(english(n + i * step) for i in range(6)) for n in firsts for step in steps), text


def test_more_than_there_are_is_told(monkeypatch):
    monkeypatch.setattr(number_words, "_TRIES", 20)
    with pytest.raises(ValueError, match=r"hardly more than .* of 'count' in test, got 1000"):
        counting_texts(1_000, split="test")


def test_sums_are_right_and_go_on_from_each_other():
    for text in sums(50):
        before = None
        for sentence in text.removesuffix(".").split(". "):
            a, b, c = re.fullmatch(r"(\S+) and (\S+) is (\S+)", sentence).groups()
            assert VALUE[a] + VALUE[b] == VALUE[c] < 100
            assert before in (None, a)
            before = c


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exercises("multiply", 1), "task must be one of .*, got 'multiply'"),
        (lambda: exercises("add", 1, split="dev"), "split must be one of .*, got 'dev'"),
        (lambda: sums(0), "count must be at least 1, got 0"),
    ],
)
def test_bad_input_is_told(call, message):
    with pytest.raises(ValueError, match=message):
        call()
