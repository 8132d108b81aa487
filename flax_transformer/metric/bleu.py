"""BLEU and chrF of translations, as sacrebleu computes them."""

from collections.abc import Callable
from dataclasses import dataclass

ORDER = 4
"""Tokens of the longest n-grams that BLEU counts."""


NO_BLEU = f"BLEU is not given: no reference has {ORDER} tokens, so that there are no {ORDER}-grams to match"


@dataclass(frozen=True)
class TranslationScores:
    """Corpus scores of hypotheses against one reference each, in percent.

    `tokenized_bleu` takes the text as already tokenised, as most papers before 2018 did; `bleu` tokenises by the
    standard rules and is comparable by its signature. Either is None where no reference has `ORDER` tokens: without a
    4-gram to match it would be 0, also for hypotheses that equal their references.
    """

    bleu: float | None
    chrf: float
    tokenized_bleu: float | None
    exact_match: float
    signature: str

    def metrics(self) -> dict[str, float]:
        """Return the scores that are defined, by name, without the signature."""
        values = {name: getattr(self, name) for name in ("bleu", "chrf", "tokenized_bleu", "exact_match")}
        return {name: value for name, value in values.items() if value is not None}


def score(hypotheses: list[str], references: list[str]) -> TranslationScores:
    """Score a corpus.

    Raises:
      ValueError: when there are no sentences, or not as many hypotheses as references.
    """
    from sacrebleu.metrics import BLEU, CHRF

    if len(hypotheses) != len(references) or not references:
        raise ValueError(
            f"scoring needs one reference a hypothesis, got {len(hypotheses)} hypotheses, {len(references)} references"
        )
    bleu, tokenized = BLEU(), BLEU(tokenize="none", force=True)

    def defined(metric: BLEU, tokens: Callable[[str], str]) -> float | None:
        value = metric.corpus_score(hypotheses, [references]).score
        return value if any(len(tokens(reference).split()) >= ORDER for reference in references) else None

    standard, split = defined(bleu, bleu.tokenizer), defined(tokenized, str)
    same = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references, strict=True))
    return TranslationScores(
        bleu=standard,
        chrf=CHRF().corpus_score(hypotheses, [references]).score,
        tokenized_bleu=split,
        exact_match=100 * same / len(references),
        signature=str(bleu.get_signature()),
    )
