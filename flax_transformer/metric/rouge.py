"""ROUGE of summaries (Lin 2004), as Google's `rouge-score` computes it, with confidence intervals by the bootstrap."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
"""Words, pairs of words, the longest common subsequence of a summary, and that of its lines (sentences) together."""

RESAMPLES = 1000


def rouge_scorer(kinds: Sequence[str] = KINDS, *, stemmer: bool = True) -> Any:
    """Return the scorer of `rouge-score`: lower case, letters and digits, stems by Porter if asked for.

    Raises:
      ValueError: the package is not installed; names the extra that has it.
    """
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise ValueError('ROUGE needs the extra "documents": pip install "flax-transformer[documents]"') from error
    return RougeScorer(list(kinds), use_stemmer=stemmer)


def rouge_f(
    summaries: Sequence[str], references: Sequence[Sequence[str]], *, stemmer: bool = True
) -> dict[str, Float[np.ndarray, " B"]]:
    """Compute the F-measure of each summary, in percent, by the names in `KINDS`.

    Of several references the one with the best F-measure counts, kind by kind, which is the library's convention
    (`score_multi`). Sentences are lines.

    Raises:
      ValueError: not as many references as summaries, none at all, or a summary without one.
    """
    if len(summaries) != len(references) or not summaries:
        raise ValueError(
            f"ROUGE needs references of every summary, got {len(summaries)} summaries, {len(references)} references"
        )
    if not all(references):
        raise ValueError(
            f"every summary must have a reference, that of number {[*map(bool, references)].index(False)} has none"
        )
    scorer = rouge_scorer(stemmer=stemmer)
    found = [scorer.score_multi(list(each), summary) for summary, each in zip(summaries, references, strict=True)]
    return {kind: np.array([100 * each[kind].fmeasure for each in found]) for kind in KINDS}


def interval(values: Float[np.ndarray, " B"], *, seed: int = 0, confidence: float = 0.95) -> tuple[float, float]:
    """Return the percentile interval of the mean over documents drawn with replacement (Efron 1979).

    Of fewer than two documents it is the mean itself.
    """
    from scipy.stats import bootstrap

    if len(values) < 2:
        return float(values.mean()), float(values.mean())
    found = bootstrap(
        (values,), np.mean, n_resamples=RESAMPLES, batch=100, confidence_level=confidence, method="percentile",
        random_state=np.random.default_rng(seed),
    )  # fmt: skip
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def rouge(
    summaries: Sequence[str], references: Sequence[Sequence[str]], *, stemmer: bool = True, seed: int = 0
) -> dict[str, float]:
    """Return mean F-measures in percent as `rouge1` …, with 95 % intervals as `rouge1_low`, `rouge1_high` ….

    Args:
      seed: of the bootstrap.

    Raises:
      ValueError: as `rouge_f`.
    """
    scores = {}
    for kind, values in rouge_f(summaries, references, stemmer=stemmer).items():
        low, high = interval(values, seed=seed)
        scores |= {kind: float(values.mean()), f"{kind}_low": low, f"{kind}_high": high}
    return scores
