import math

import numpy as np
import pytest

from flax_transformer.task.lexical import Lexical, terms

bm25s = pytest.importorskip("bm25s")
pytestmark = pytest.mark.proves("retrieval of texts", "BM25 against its formula and against bm25s")

TEXTS = ["The cat sat on the mat.", "a dog ran, far from the mat", "Dogs and cats; cats, cats!", "…"]


def test_scores_are_those_of_the_formula():
    lexical = Lexical(TEXTS, k1=1.5, b=0.6)
    rows = [terms(text) for text in TEXTS]
    mean = np.mean([len(row) for row in rows])
    for query in ("cats mat", "the dog", "the the mat"):
        expected = np.zeros(len(rows))
        for term in terms(query):
            holds = sum(term in row for row in rows)
            if holds:
                weight = math.log(1 + (len(rows) - holds + 0.5) / (holds + 0.5))
                counts = np.array([row.count(term) for row in rows])
                lengths = np.array([len(row) for row in rows])
                expected += weight * counts / (counts + 1.5 * (1 - 0.6 + 0.6 * lengths / mean))
        np.testing.assert_allclose(lexical.scores(query), expected, rtol=1e-5)


def test_scores_are_those_of_the_library():
    engine = bm25s.BM25(k1=1.2, b=0.75, method="lucene")
    engine.index([terms(text) for text in TEXTS], show_progress=False)
    np.testing.assert_array_equal(Lexical(TEXTS).scores("cats on a mat"), engine.get_scores(terms("cats on a mat")))


def test_words_that_no_text_has_score_nothing():
    assert Lexical(TEXTS).scores("zebra").tolist() == [0, 0, 0, 0]


def test_terms_are_words_and_pairs_of_letters():
    assert terms("Don't STOP: ７ times") == ["don", "t", "stop", "7", "times"]
    assert terms("東京タワーは333m") == ["東京", "京タ", "タワ", "ワー", "ーは", "333m"]
    assert terms("火 fire") == ["火", "fire"]


def test_what_cannot_be_searched_is_refused():
    with pytest.raises(ValueError, match="must have words, got 2 texts without one"):
        Lexical(["…", "!"])
    with pytest.raises(ValueError, match=r"got k1=-1, b=0\.5"):
        Lexical(TEXTS, k1=-1, b=0.5)
