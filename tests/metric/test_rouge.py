"""ROUGE equals the library's, of one reference and of the best of several; intervals are those of a seed."""

import sys

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer

from flax_transformer.metric.rouge import KINDS, interval, rouge, rouge_f

pytestmark = pytest.mark.proves("ROUGE", "equal to rouge-score")

SUMMARIES = ["the cats sat on the mat\nthen left", "meeting moved", ""]
REFERENCES = [["a cat sat\non the mat"], ["the meeting is moved", "meetings moved to noon"], ["nothing"]]


@pytest.mark.parametrize("stemmer", [True, False])
def test_it_is_the_librarys(stemmer):
    library = RougeScorer(list(KINDS), use_stemmer=stemmer)
    found = rouge_f(SUMMARIES, REFERENCES, stemmer=stemmer)
    for row, (summary, several) in enumerate(zip(SUMMARIES, REFERENCES, strict=True)):
        for kind in KINDS:
            best = max(library.score(each, summary)[kind].fmeasure for each in several)
            assert found[kind][row] == pytest.approx(100 * best)


def test_intervals_hold_the_mean_and_come_from_the_seed():
    values = np.random.default_rng(0).uniform(0, 100, 200)
    low, high = interval(values, seed=1)
    assert low < values.mean() < high
    assert (low, high) == interval(values, seed=1) != interval(values, seed=2)
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 200**0.5, rel=0.15)
    scores = rouge(SUMMARIES, REFERENCES)
    assert scores["rouge1_low"] <= scores["rouge1"] <= scores["rouge1_high"]
    assert rouge(SUMMARIES[:1], REFERENCES[:1])["rouge2_low"] == rouge(SUMMARIES[:1], REFERENCES[:1])["rouge2"]


def test_what_is_wrong_is_said(monkeypatch):
    with pytest.raises(ValueError, match="got 1 summaries, 0 references"):
        rouge_f(["a"], [])
    with pytest.raises(ValueError, match="that of number 1 has none"):
        rouge_f(["a", "b"], [["a"], []])
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(ValueError, match='ROUGE needs the extra "documents"'):
        rouge_f(["a"], [["a"]])
