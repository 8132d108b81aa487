import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_transformer.data.text import MLMMasking, WordIds

V, PAD, CLS, SEP, MASK = 40, 0, 1, 2, 3
SPECIAL = (PAD, CLS, SEP)
OBJECTIVE = MLMMasking(vocab_size=V, mask=MASK, special=SPECIAL)
TOKENS = st.lists(st.integers(0, V - 1), max_size=60).map(lambda ids: np.array(ids, np.int32))


def draw(seed):
    return np.random.default_rng(seed)


@settings(max_examples=100)
@given(TOKENS, st.integers(0, 999), st.floats(0.01, 0.9))
def test_the_share_of_ordinary_tokens_is_chosen_and_nothing_special(tokens, seed, share):
    out = MLMMasking(vocab_size=V, mask=MASK, special=SPECIAL, share=share)({"tokens": tokens}, draw(seed))
    chosen = out["weights"] == 1
    choosable = int((tokens > MASK).sum())
    assert chosen.sum() == (max(1, round(share * choosable)) if choosable else 0)
    assert not np.isin(tokens[chosen], (*SPECIAL, MASK)).any()
    np.testing.assert_array_equal(out["labels"], tokens)
    np.testing.assert_array_equal(out["tokens"][~chosen], tokens[~chosen])
    assert not np.isin(out["tokens"][chosen], SPECIAL).any()


def test_the_same_generator_gives_the_same_example():
    tokens = np.arange(4, 40)
    one, two = (OBJECTIVE({"tokens": tokens}, draw(5)) for _ in range(2))
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])
    assert (OBJECTIVE({"tokens": tokens}, draw(6))["weights"] != one["weights"]).any()


def test_eight_of_ten_are_masked_one_is_random_one_stays():
    rng = draw(0)
    tokens = np.full(200, 20, np.int32)
    outs = [OBJECTIVE({"tokens": tokens}, rng) for _ in range(1000)]
    found = np.concatenate([out["tokens"][out["weights"] == 1] for out in outs])
    n = len(found)
    assert n == 30_000
    # A random token is another one in 35 of 36 cases. Bounds are five standard deviations.
    for share, observed in (
        (0.8, (found == MASK).mean()),
        (0.1 + 0.1 / 36, (found == 20).mean()),
        (0.1 * 35 / 36, ((found != 20) & (found != MASK)).mean()),
    ):
        assert abs(observed - share) < 5 * np.sqrt(share * (1 - share) / n)
    counts = np.bincount(found[(found != 20) & (found != MASK)], minlength=V)
    assert not counts[:4].any()
    others = np.delete(counts[4:], 16)
    assert np.abs(others - others.mean()).max() < 5 * np.sqrt(others.mean())


def test_every_place_is_chosen_alike():
    rng = draw(1)
    tokens = np.array([CLS, *range(4, 24), SEP])
    counts = sum(OBJECTIVE({"tokens": tokens}, rng)["weights"] for _ in range(4000))
    assert counts[0] == counts[-1] == 0
    assert np.abs(counts[1:-1] - 600).max() < 5 * np.sqrt(4000 * 0.15 * 0.85)


@settings(max_examples=100)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=15), st.integers(0, 999))
def test_words_are_chosen_whole(sizes, seed):
    words = np.concatenate([[-1], np.repeat(np.arange(len(sizes)), sizes), [-1]])
    tokens = np.concatenate([[CLS], 4 + np.arange(sum(sizes)) % 36, [SEP]])
    whole = MLMMasking(vocab_size=V, mask=MASK, special=SPECIAL, words="words")
    out = whole({"tokens": tokens, "words": words, "types": tokens * 0}, draw(seed))
    chosen = out["weights"] == 1
    picked = set(words[chosen])
    assert picked
    assert -1 not in picked
    np.testing.assert_array_equal(chosen, np.isin(words, list(picked)))
    budget = max(1, round(0.15 * sum(sizes)))
    assert chosen.sum() <= budget or len(picked) == 1
    # as many as fit: no word left out is as short as what is missing
    missing = budget - chosen.sum()
    assert all(size > missing for word, size in enumerate(sizes) if word not in picked)
    assert out.keys() == {"tokens", "labels", "weights", "types"}


def test_a_continuing_piece_belongs_to_the_word_before():
    number = WordIds(continuing=(7, 8), special=(CLS, SEP))
    out = number({"tokens": np.array([CLS, 7, 5, 7, 8, 6, SEP, 8, 8, 5, SEP])}, draw(0))
    assert out["words"].tolist() == [-1, 1, 2, 2, 2, 3, -1, 5, 5, 6, -1]
    assert not len(number({"tokens": np.array([], np.int32)}, draw(0))["words"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 0.0}, "share below 1, got share=0.0"),
        ({"mask_share": 0.8, "random_share": 0.3}, "sum to at most 1, got 0.8 + 0.3"),
        ({"special": (0, 40)}, "must lie in the vocabulary of 40, got (0, 3, 40)"),
        ({"special": tuple(range(40))}, "must lie in the vocabulary of 40"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        MLMMasking(**{"vocab_size": V, "mask": MASK, "special": SPECIAL, **options})


def test_objectives_are_values():
    assert MLMMasking(vocab_size=V, mask=MASK, special=(SEP, CLS, PAD)) == OBJECTIVE
    assert hash(OBJECTIVE) == hash(MLMMasking(vocab_size=V, mask=MASK, special=(SEP, CLS, PAD)))
