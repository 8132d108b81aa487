import numpy as np
import pytest

from flax_transformer.metric.ranking import rank_scores

pytest.importorskip("ir_measures")
pytestmark = pytest.mark.proves("retrieval of texts", "recall, reciprocal rank, discounted gain against NumPy")


def test_scores_are_those_of_their_definitions():
    draw = np.random.default_rng(0)
    found, relevant = {}, {}
    for query in range(30):
        names = [f"d{each}" for each in draw.permutation(40)[:25]]
        found[str(query)] = [(name, float(100 - rank)) for rank, name in enumerate(names)]
        relevant[str(query)] = [f"d{each}" for each in draw.permutation(40)[: draw.integers(1, 4)]]
    scores = rank_scores(found, relevant, (1, 5))
    recall, reciprocal, gain = {1: [], 5: []}, [], []
    for query, names in relevant.items():
        hits = [name in names for name, _ in found[query]]
        for k, each in recall.items():
            each.append(sum(hits[:k]) / len(names))
        reciprocal.append(1 / (hits.index(True) + 1) if any(hits) else 0)
        best = sum(1 / np.log2(rank + 2) for rank in range(min(len(names), 10)))
        gain.append(sum(hit / np.log2(rank + 2) for rank, hit in enumerate(hits[:10])) / best)
    assert scores == pytest.approx(
        {
            "recall@1": 100 * np.mean(recall[1]),
            "recall@5": 100 * np.mean(recall[5]),
            "mrr": 100 * np.mean(reciprocal),
            "ndcg@10": 100 * np.mean(gain),
        }
    )


def test_queries_without_anything_relevant_are_refused():
    with pytest.raises(ValueError, match="something relevant, got none for q"):
        rank_scores({}, {"q": []})
    with pytest.raises(ValueError, match="no query"):
        rank_scores({}, {})
