"""How far texts are from what they should be: the fewest words, or letters, that must be changed (Levenshtein 1966)."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Edits(NamedTuple):
    """What must be changed in references to get hypotheses, and how long the references are."""

    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    length: int = 0

    @property
    def rate(self) -> float:
        """Return the share of the references' length, which may be above 1; 0 where both are empty."""
        wrong = self.substitutions + self.deletions + self.insertions
        return wrong / self.length if self.length else float(wrong > 0)


def edits(reference: Sequence[Any], hypothesis: Sequence[Any]) -> Edits:
    """Count the fewest substitutions, deletions and insertions together that turn a reference into a hypothesis.

    Of ways that are equally short it is one with the most substitutions.

    >>> edits("one two three".split(), "one too three four".split())
    Edits(substitutions=1, deletions=0, insertions=1, length=3)
    """
    # Of each beginning of the hypothesis: errors, then what is not a substitution, deletions, insertions.
    above = [(place, place, 0, place) for place in range(len(hypothesis) + 1)]
    for row, said in enumerate(reference, 1):
        line = [(row, row, row, 0)]
        for column, token in enumerate(hypothesis, 1):
            errors, moved, deleted, inserted = above[column - 1]
            aligned = (errors + (said != token), moved, deleted, inserted)
            errors, moved, deleted, inserted = above[column]
            without = (errors + 1, moved + 1, deleted + 1, inserted)
            errors, moved, deleted, inserted = line[-1]
            line.append(min(aligned, without, (errors + 1, moved + 1, deleted, inserted + 1)))
        above = line
    errors, moved, deleted, inserted = above[-1]
    return Edits(errors - moved, deleted, inserted, len(reference))


def word_edits(references: Iterable[str], hypotheses: Iterable[str]) -> Edits:
    """Add up the edits of words: their `rate` is the word error rate."""
    return _sum(edits(a.split(), b.split()) for a, b in zip(references, hypotheses, strict=True))


def letter_edits(references: Iterable[str], hypotheses: Iterable[str]) -> Edits:
    """Add up the edits of letters, spaces among them: their `rate` is the character error rate."""
    return _sum(edits(a, b) for a, b in zip(references, hypotheses, strict=True))


def _sum(parts: Iterable[Edits]) -> Edits:
    return Edits(*map(sum, zip(Edits(), *parts, strict=True)))
