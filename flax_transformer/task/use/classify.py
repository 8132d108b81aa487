"""Classify texts, and the words of texts."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float

from flax_transformer.hub import Pretrained
from flax_transformer.task.use.require import require_use, tokenizer_of

ROWS = 32
"""Texts that are classified together."""


@dataclass(frozen=True)
class Label:
    """A class and its probability; of a regression, the number it gives."""

    name: str
    probability: float


@dataclass(frozen=True)
class Word:
    """A word of a text, where it is, and the class of its first piece."""

    text: str
    label: str
    probability: float
    start: int
    end: int


def label_names(pretrained: Pretrained, count: int) -> list[str]:
    """Return the names that config.json has for classes, and LABEL_0, LABEL_1 and so on for those it does not name."""
    named = pretrained.config.get("id2label")
    named = named if isinstance(named, dict) else {}
    return [str(named.get(str(i), f"LABEL_{i}")) for i in range(count)]


def classify(pretrained: Pretrained, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[list[Label]]:
    """Classify texts, or pairs of texts.

    Returns:
      For each text all classes, the most probable first. A model with one class gives its probability; one that
      `problem_type` of config.json calls a regression gives numbers as they are.

    Raises:
      ValueError: a checkpoint of another kind, an empty text, or one longer than the positions.
    """
    require_use(pretrained, "classify")
    tokenizer = tokenizer_of(pretrained, *texts)
    if any(not text.strip() for text in texts):
        raise ValueError("a text to classify must not be empty")
    rows = ROWS if tokenizer.pad is not None else 1
    found: list[list[Label]] = []
    for i in range(0, len(texts), rows):
        inputs = tokenizer(texts[i : i + rows], None if pairs is None else pairs[i : i + rows])
        logits = np.asarray(pretrained(**inputs).logits.astype(np.float32))
        found += ranked(pretrained, logits)
    return found


def ranked(pretrained: Pretrained, logits: Float[np.ndarray, "R E"]) -> list[list[Label]]:
    """Return all classes of each row, the most probable first."""
    probabilities = _probabilities(pretrained.config.get("problem_type"), logits)
    names = label_names(pretrained, probabilities.shape[-1])
    return [[Label(names[j], float(row[j])) for j in np.argsort(-row, kind="stable")] for row in probabilities]


def label_words(pretrained: Pretrained, text: str) -> list[Word]:
    """Give every word of a text its class: that of its first piece.

    Raises:
      ValueError: a checkpoint of another kind, an empty text, or one longer than the positions.
    """
    require_use(pretrained, "label")
    if not text.strip():
        raise ValueError("a text to classify must not be empty")
    tokenizer = tokenizer_of(pretrained, text)
    probabilities = np.asarray(jax.nn.softmax(pretrained(**tokenizer([text])).logits[0].astype(np.float32)))
    names = label_names(pretrained, probabilities.shape[-1])
    pieces = tokenizer.engine.encode(text)
    words: list[Word] = []
    spans = zip(pieces.word_ids, pieces.offsets, pieces.special_tokens_mask, probabilities, strict=True)
    latest = None
    for number, (start, end), special, share in spans:
        start += len(text[start:end]) - len(text[start:end].lstrip())
        if special or start >= end:
            continue
        joined = bool(words) and number == latest and start == words[-1].end
        if joined:
            last = words[-1]
            words[-1] = Word(text[last.start : end], last.label, last.probability, last.start, end)
        else:
            best = int(share.argmax())
            words.append(Word(text[start:end], names[best], float(share[best]), start, end))
        latest = number
    return words


def _probabilities(kind: str | None, logits: Float[np.ndarray, "R E"]) -> Float[np.ndarray, "R E"]:
    """Turn logits into what they say of each class: its share among all, its own probability, or a number."""
    if kind == "regression":
        return logits
    alone = kind == "multi_label_classification" or logits.shape[-1] == 1
    return np.asarray(jax.nn.sigmoid(logits) if alone else jax.nn.softmax(logits))
