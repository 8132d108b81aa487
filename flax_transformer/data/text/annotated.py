"""Texts with their answers, labels or translations: files in the forms of SQuAD and CoNLL, and of two columns."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flax_transformer.data.text.plain import read_text


class Question(NamedTuple):
    """A question about a passage."""

    question: str
    context: str
    answers: tuple[str, ...]
    """Each that is right; none where the passage has no answer."""
    starts: tuple[int, ...] = ()
    """Where each begins in the passage, in characters."""


class LabelledWords(NamedTuple):
    """The words of a sentence, each with its label."""

    words: tuple[str, ...]
    labels: tuple[str, ...]


def read_squad(path: Path) -> list[Question]:
    """Read questions as SQuAD has them: JSON, or .json.gz, of `data`, `paragraphs`, `context`, `qas` (Rajpurkar 2016).

    Raises:
      FileNotFoundError: no such file.
      ValueError: another form, a question or passage that is empty, or none at all; names the file and what is odd.
    """
    try:
        found = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be JSON in SQuAD's form: {error}") from error
    questions = []
    for article in _list(found, "data", path):
        for paragraph in _list(article, "paragraphs", path):
            context = _text(paragraph, "context", path)
            for asked in _list(paragraph, "qas", path):
                answers = () if asked.get("is_impossible") else _list(asked, "answers", path)
                right = tuple(_text(each, "text", path) for each in answers)
                starts = tuple(_start(each, text, context, path) for each, text in zip(answers, right, strict=True))
                questions.append(Question(_text(asked, "question", path), context, right, starts))
    if not questions:
        raise ValueError(f"{path} must have at least one question, got none")
    return questions


def _list(found: Any, name: str, path: Path) -> list[Any]:
    value = found.get(name) if isinstance(found, Mapping) else None
    if not isinstance(value, list):
        raise ValueError(f"{path} must be in SQuAD's form, with a list {name!r}, got {found!r:.60}")
    return value


def _start(found: Any, text: str, context: str, path: Path) -> int:
    """Read where an answer begins: the nearest place that has it; −1 where none has."""
    said = found.get("answer_start", 0)
    if not isinstance(said, int):
        raise ValueError(f"{path} must have whole numbers as answer_start, got {said!r:.60}")
    places = (at for at in range(len(context) - len(text) + 1) if context.startswith(text, at))
    return min(places, key=lambda at: abs(at - said), default=-1)


def _text(found: Any, name: str, path: Path) -> str:
    value = found.get(name) if isinstance(found, Mapping) else None
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{path} must be in SQuAD's form, with a text {name!r}, got {found!r:.60}")
    return value


def read_conll(path: Path) -> list[LabelledWords]:
    """Read sentences as CoNLL 2003 has them: a line a word, its label last, columns between, a blank line after each.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a line of one column, or no word; names the file and the line, counted from 1.
    """
    sentences: list[list[tuple[str, str]]] = [[]]
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        columns = line.split()
        if not columns or columns[0] == "-DOCSTART-":
            sentences.append([])
        elif len(columns) < 2:
            raise ValueError(f"{path}, line {number}: a line must be a word and its label, got {line!r:.60}")
        else:
            sentences[-1].append((columns[0], columns[-1]))
    found = [LabelledWords(*map(tuple, zip(*each, strict=True))) for each in sentences if each]
    if not found:
        raise ValueError(f"{path} must have at least one word and its label, got none")
    return found


def read_pairs(path: Path) -> tuple[list[str], list[str]]:
    """Read a file of two columns with a tab between: source and target, or text and label.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a line of other than two columns; names it.
    """
    rows = [line.removesuffix("\r").split("\t") for line in read_text(path).removesuffix("\n").split("\n")]
    wrong = next((number for number, row in enumerate(rows, start=1) if len(row) != 2), None)
    if wrong is not None:
        raise ValueError(f"{path}, line {wrong}: a line must be source TAB target, got {len(rows[wrong - 1])} columns")
    return [row[0] for row in rows], [row[1] for row in rows]
