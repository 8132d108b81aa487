"""Translation quality by the reference implementation, sacreBLEU (Post 2018)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scores:
    """Corpus scores of hypotheses against one reference each, in percent.

    `tokenized_bleu` takes the text as already tokenised, as most papers before 2018 did; `bleu` tokenises by the
    standard rules and is comparable by its signature.
    """

    bleu: float
    chrf: float
    tokenized_bleu: float
    exact_match: float
    signature: str

    def metrics(self) -> dict[str, float]:
        """Give the numbers without the signature."""
        return {
            "bleu": self.bleu,
            "chrf": self.chrf,
            "tokenized_bleu": self.tokenized_bleu,
            "exact_match": self.exact_match,
        }


def score(hypotheses: list[str], references: list[str]) -> Scores:
    """Score a corpus.

    Raises:
      ValueError: when there are no sentences, or not as many hypotheses as references.
    """
    from sacrebleu.metrics import BLEU, CHRF

    if len(hypotheses) != len(references) or not references:
        raise ValueError(
            f"scoring needs one reference a hypothesis, got {len(hypotheses)} hypotheses, {len(references)} references"
        )
    bleu = BLEU()
    standard = bleu.corpus_score(hypotheses, [references]).score
    tokenized = BLEU(tokenize="none", force=True).corpus_score(hypotheses, [references]).score
    same = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references, strict=True))
    return Scores(
        bleu=standard,
        chrf=CHRF().corpus_score(hypotheses, [references]).score,
        tokenized_bleu=tokenized,
        exact_match=100 * same / len(references),
        signature=str(bleu.get_signature()),
    )
