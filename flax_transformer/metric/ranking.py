"""Metrics of rankings: recall, reciprocal rank and discounted gain, as `ir_measures` computes them by trec_eval."""

from collections.abc import Mapping, Sequence

from flax_transformer.listing import listed


def rank_scores(
    found: Mapping[str, Sequence[tuple[str, float]]],
    relevant: Mapping[str, Sequence[str]],
    cutoffs: Sequence[int] = (1, 5, 20),
) -> dict[str, float]:
    """Score rankings, in percent: `recall@k` for each cutoff, `mrr` (of all that were found) and `ndcg@10`.

    Recall is of all that is relevant; with one relevant document a query it says how often that is among the first k.

    Args:
      found: for each query, what was found, with scores; larger ones come first.
      relevant: for each query, what should be found.

    Raises:
      ImportError: without `ir_measures`, which the extra `documents` installs.
      ValueError: no queries, or one without anything relevant.
    """
    try:
        import ir_measures
    except ImportError as error:
        raise ImportError("rankings are scored by ir_measures: pip install 'flax-transformer[documents]'") from error
    if lacking := [query for query, names in relevant.items() if not names] or ([] if relevant else ["no query"]):
        raise ValueError(f"every query must have something relevant, got none for {listed(lacking)}")
    measures = {f"recall@{k}": ir_measures.R @ k for k in cutoffs}
    measures |= {"mrr": ir_measures.RR, "ndcg@10": ir_measures.nDCG @ 10}
    truth = {query: dict.fromkeys(names, 1) for query, names in relevant.items()}
    run = {query: dict(found.get(query, ())) for query in relevant}
    scores = ir_measures.calc_aggregate(list(measures.values()), truth, run)
    return {name: 100 * float(scores[measure]) for name, measure in measures.items()}
