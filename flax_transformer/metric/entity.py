"""Precision, recall and F1 of entities that words are labelled with (Tjong Kim Sang and De Meulder 2003, CoNLL)."""

import re
from collections.abc import Iterator, Sequence

LABEL = re.compile(r"O|[BIES]-.+")
"""`B-` begins an entity of a kind, `I-` goes on, `E-` ends one, `S-` is one word alone, `O` is none."""


def is_entity_scheme(labels: Sequence[str]) -> bool:
    """Return whether labels say where entities begin and end.

    >>> is_entity_scheme(["O", "B-LOC", "I-LOC"]), is_entity_scheme(["NOUN", "O"])
    (True, False)
    """
    return all(map(LABEL.fullmatch, labels))


def entities(labels: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Find the entities of a sentence: kind, first word, last word.

    As conlleval does, an `I-` or `E-` that follows nothing, or another kind, begins an entity.

    >>> list(entities(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"]))
    [('PER', 0, 1), ('LOC', 3, 3), ('LOC', 4, 4)]
    """
    kind, begin, before = "", 0, "O"
    for place, label in enumerate([*labels, "O"]):
        mark, _, this = label.partition("-")
        open_ = before in ("B", "I")  # after E and S whatever comes is new
        if open_ and (mark in ("O", "B", "S") or this != kind):
            yield kind, begin, place - 1
            open_ = False
        if mark != "O" and not open_:
            kind, begin = this, place
        if mark in ("E", "S"):
            yield kind, begin, place
        before = mark


def entity_scores(predicted: Sequence[Sequence[str]], truth: Sequence[Sequence[str]]) -> dict[str, float]:
    """Compute precision, recall and F1 in per cent over all sentences; one without entities on a side has 0.

    Args:
      predicted: the labels of each sentence's words.
      truth: the right ones.

    Raises:
      ValueError: sentences or words that are not as many.

    >>> entity_scores([["B-PER", "O", "B-LOC"]], [["B-PER", "O", "O"]])
    {'precision': 50.0, 'recall': 100.0, 'f1': 66.66666666666667}
    """
    if list(map(len, predicted)) != list(map(len, truth)):
        raise ValueError("predicted and right labels must be as many, sentence by sentence")
    found, there = ({(row, *each) for row, labels in enumerate(side) for each in entities(labels)} for side in
                    (predicted, truth))  # fmt: skip
    right = len(found & there)
    return {
        "precision": 100 * right / max(len(found), 1),
        "recall": 100 * right / max(len(there), 1),
        "f1": 100 * 2 * right / max(len(found) + len(there), 1),
    }
