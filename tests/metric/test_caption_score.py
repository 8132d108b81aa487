"""Scores of captions: by hand, at their ends, and against the reference implementation."""

import math

import numpy as np
import pytest

from flax_transformer.metric.caption import caption_scores, cider, words

SAID = ["a dog runs on grass", "two men stand in front of a wall", "A boy jumps .", "a dog runs on grass"]
KNOWN = [
    ["a brown dog runs on the grass", "a dog is running"],
    ["two men are in front of a brick wall", "men standing by a wall", "two people"],
    ["a boy jumps into a pool", "a boy jumps"],
    ["a cat sleeps"],
]


def test_what_is_said_word_for_word_is_the_best_there_is():
    perfect = [each[0] for each in KNOWN]
    scores = caption_scores(perfect, KNOWN)
    assert scores["exact"] == 100
    assert [scores[f"bleu{n}"] for n in range(1, 5)] == pytest.approx([100] * 4)
    alone = caption_scores(perfect, [[text] for text in perfect])
    long = [len(words(text)) >= 4 for text in perfect]  # shorter ones have no four words in a row
    assert all(long[:3])
    assert not long[3]
    assert alone["cider"] == pytest.approx((3 * 10 + 7.5) / 4)


def test_capitals_and_full_stops_say_nothing():
    one, other = (caption_scores(said, KNOWN) for said in (SAID, [text.upper() + "!" for text in SAID]))
    assert one == other
    assert one["exact"] == 25


def test_bleu_by_hand():
    """Of two words both are in one reference or the other; the only pair is in none; lengths are the nearest's."""
    scores = caption_scores(["a dog"], [["a cat", "the dog runs"]])
    assert scores["bleu1"] == pytest.approx(100)
    assert scores["bleu2"] == 0
    short = caption_scores(["a dog"], [["a dog runs on the grass"]])
    assert short["bleu1"] == pytest.approx(100 * math.exp(1 - 6 / 2))


def test_cider_by_hand():
    """Single words alone: of two images, each word is in one, and weighs log 2; a repeated word counts but once."""
    found = cider([["red"], ["dog", "dog"]], [[["red"]], [["dog"]]])
    second = math.exp(-1 / (2 * 36)) * math.log(2) ** 2 / (2 * math.log(2) * math.log(2))
    assert found == pytest.approx(10 / 4 * (1 + second) / 2)


@pytest.mark.parametrize(("said", "known"), [([], []), (["a"], []), (["a", "b"], [["a"], []])])
def test_what_cannot_be_scored_is_refused(said, known):
    with pytest.raises(ValueError, match="captions are scored by one or more references each"):
        caption_scores(said, known)


@pytest.mark.parity
@pytest.mark.proves("vision_encoder_decoder", "parity", "CIDEr-D and BLEU of captions")
def test_the_reference_implementation_agrees():
    bleu = pytest.importorskip("pycocoevalcap.bleu.bleu")
    reference = pytest.importorskip("pycocoevalcap.cider.cider")
    rng = np.random.default_rng(0)
    text = lambda: " ".join(rng.choice(list("abc"), rng.integers(1, 12)))  # noqa: E731
    said = [text() for _ in range(40)]
    known = [[text() for _ in range(rng.integers(1, 6))] for _ in said]
    theirs = {i: each for i, each in enumerate(known)}, {i: [each] for i, each in enumerate(said)}
    ours = caption_scores(said, known)
    assert ours["bleu4"] > 1  # where it is 0, the reference smooths
    assert ours["cider"] == pytest.approx(reference.Cider().compute_score(*theirs)[0], rel=1e-6)
    expected = bleu.Bleu(4).compute_score(*theirs, verbose=0)[0]
    assert [ours[f"bleu{n}"] / 100 for n in range(1, 5)] == pytest.approx(expected, rel=1e-5)
