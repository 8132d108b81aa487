"""Texts with their answers, labels or translations: files in the forms of SQuAD and CoNLL, and records."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flax_transformer.data.file import suffix_of
from flax_transformer.data.record import Records, choose_columns, label_of, open_records, texts_of
from flax_transformer.data.table import Table
from flax_transformer.data.text.plain import read_text

QUESTION_COLUMNS = (("question", "context", "answers"), ("question", "context", "answer"))
WORD_COLUMNS = (
    ("tokens", "ner_tags"), ("tokens", "labels"), ("tokens", "tags"), ("words", "labels"), ("words", "tags"),
    ("tokens", "pos_tags"),
)  # fmt: skip
PAIR_COLUMNS = (("source", "target"),)
"""Columns that are taken where no others are named: the first that are all there."""


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
    return _nearest(text, said, context)


def _nearest(text: str, said: int, context: str) -> int:
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


def read_questions(path: Path, columns: Sequence[str] = ()) -> list[Question]:
    """Read questions about passages: JSON as `read_squad` does, or records of `data.record.open_records`.

    Answers are a text, a list of texts, or an object of lists `text` and `answer_start`, as the hub has SQuAD; empty
    where the passage has no answer. A text may have a column `answer_start` beside it.

    Args:
      columns: names of the columns of a question, a passage and its answers; by default as `QUESTION_COLUMNS`.

    Raises:
      FileNotFoundError: no such file.
      ValueError: another form, a question or passage that is empty, or none at all; names the file and what is odd.
    """
    if suffix_of(path.name) == ".json":
        return read_squad(path)
    records = open_records(path)
    names = choose_columns(records, QUESTION_COLUMNS, columns)
    begins = ("answer_start",) if records.has("answer_start") else ()
    found = []
    for where, (question, context, answers, *begin) in records.values(*names, *begins):
        texts_of(where, **dict(zip(names, (question, context), strict=False)))
        if not question.strip() or not context.strip():
            raise ValueError(f"{where}: a question and its passage must not be empty")
        right, starts = _answers(where, answers, begin)
        places = tuple(_nearest(text, at, context) for text, at in zip(right, starts, strict=True))
        found.append(Question(question, context, right, places))
    return found


def _answers(where: str, answers: Any, begin: Sequence[Any]) -> tuple[tuple[str, ...], list[int]]:
    """Return the right answers, and where they are said to begin."""
    begins = list(begin)
    if isinstance(answers, Mapping):
        answers, begins = answers.get("text"), answers.get("answer_start") or []
    texts = [answers] if isinstance(answers, str) else answers or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts) or not isinstance(begins, list):
        raise ValueError(f"{where}: answers must be texts, perhaps with lists of where they begin, got {answers!r:.60}")
    texts_of(where, **{f"answer {number}": text for number, text in enumerate(texts, start=1)})
    said = [int(at) if isinstance(at, str) and at.isdecimal() and len(at) < 10 else at for at in begins]
    said = said or [0] * len(texts)
    right = [(text, at) for text, at in zip(texts, said, strict=False) if text.strip()]
    if len(said) < len(texts) or not all(type(at) is int for _, at in right):
        raise ValueError(f"{where}: each answer must have a whole number for where it begins, got {begins!r:.60}")
    return tuple(text for text, _ in right), [at for _, at in right]


def read_words(path: Path, columns: Sequence[str] = ()) -> list[LabelledWords]:
    """Read sentences of labelled words: as `read_conll` does, or records of `data.record.open_records`.

    Words and labels are lists, or texts with spaces between them; numbers of labels are read by the schema.

    Args:
      columns: names of the columns of words and of labels; by default as `WORD_COLUMNS`.

    Raises:
      FileNotFoundError: no such file.
      ValueError: another form, words and labels that are not as many, or none; names the file and line or row.
    """
    if not path.is_dir() and suffix_of(path.name) in ("", ".conll", ".txt", ".tsv", ".bio", ".iob"):
        return read_conll(path)
    records = open_records(path)
    names = choose_columns(records, WORD_COLUMNS, columns)
    called = records.classes.get(names[1], ())
    found = []
    for where, values in records.values(*names):
        words, labels = (value.split() if isinstance(value, str) else value for value in values)
        if not all(isinstance(each, list) for each in (words, labels)) or not words or len(words) != len(labels):
            raise ValueError(f"{where}: words and labels must be lists of one length, got {values!r:.80}")
        texts_of(where, **{f"word {number}": word for number, word in enumerate(words, start=1)})
        if not all(word.strip() for word in words):
            raise ValueError(f"{where}: words must not be empty")
        found.append(LabelledWords(tuple(words), tuple(label_of(where, label, called) for label in labels)))
    return found


def read_pairs(path: Path, columns: Sequence[str] = ()) -> Table:
    """Read pairs of texts into columns `source` and `target`, of any form that `data.record.open_records` takes.

    Args:
      columns: names of the two columns, by default `source` and `target`; tab-separated lines need none.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a record of other than two columns, or what is no text; names it.
    """
    pairs = [pair for _, pair in paired(open_records(path), PAIR_COLUMNS, columns)]
    return Table({"source": [source for source, _ in pairs], "target": [target for _, target in pairs]})


def paired(
    records: Records, usual: Sequence[Sequence[str]], columns: Sequence[str] = ()
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield where each record is and its two texts; errors as `read_pairs`."""
    if records.named or columns:
        names = choose_columns(records, usual, columns)
        for where, values in records.values(*names):
            source, target = texts_of(where, **dict(zip(names, values, strict=True)))
            yield where, (source, target)
        return
    for index, record in enumerate(records):
        if len(record) != 2:
            raise ValueError(f"{records.where(index)}: a line must be source TAB target, got {len(record)} columns")
        yield records.where(index), (record["1"], record["2"])
