"""Questions with answers to choose from: files in the forms of RACE, DREAM and of JSON lines, or made-up dialogues."""

import json
import random
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flax_transformer.data.record import (
    FORMS,
    Records,
    choose_columns,
    find_split,
    holds_tables,
    open_records,
    texts_of,
)
from flax_transformer.data.split import split_file
from flax_transformer.data.text.plain import read_text
from flax_transformer.frozen import frozen


class Choices(NamedTuple):
    """A question about a text, and its answers."""

    context: str
    """What is read: a passage, or the turns of a dialogue, one a line."""
    question: str
    answers: tuple[str, ...]
    label: int
    """Number of the right one."""


@frozen
class ChoiceData:
    """Questions of a folder, `{root}/{split name}.json`, `.jsonl`, or a folder of such files, as RACE's `train/`.

    What a file may be: RACE's objects of `article`, `questions`, `options` and `answers` (A, B, …); DREAM's lists of a
    dialogue, its questions with `choice` and `answer`, and an id; lines of `context`, `question`, `answers` and
    `label`. CSV, Parquet and Arrow files and folders that `datasets` wrote have such columns. An answer that stands
    twice among the choices is read once. Without a folder they are made-up dialogues.
    """

    root: str = ""
    """The folder; empty: made-up dialogues."""
    train: str = "train"
    """Name of what is trained on, without its suffix."""
    validation: str = "dev"
    """Name of what is validated on."""
    test: str = "test"
    """Name of what is tested on."""
    columns: tuple[str, ...] = ()
    """Names of the columns of a text, perhaps a question, its answers, and which is right, where a form has names; by
    default as `COLUMNS`. One with * behind, as ending*, stands for all that end in a number in its place."""

    def read(self, split: str) -> list[Choices]:
        """Read the `train`, `validation` or `test` questions.

        Raises:
          FileNotFoundError: no such file or folder.
          ValueError: a file of another form, or a question without its right answer; names it.
        """
        name = split_file(self, split)
        if not self.root:
            return made_up_choices(split)
        found = read_choices(Path(self.root) / name, self.columns)
        if not found:
            raise ValueError(f"{Path(self.root) / name} must have questions, it has none")
        return found


def read_choices(path: str | Path, columns: Sequence[str] = ()) -> list[Choices]:
    """Read a file by its name, perhaps without the suffix, or all files of a folder; errors as `ChoiceData.read`."""
    path = Path(path)
    if path.is_dir() and not holds_tables(path):
        files = sorted(each for each in path.rglob("*") if each.suffix in _SUFFIXES and not each.name.startswith("."))
    else:
        files = [each for each in (path, *(path.with_name(path.name + end) for end in _SUFFIXES)) if each.exists()][:1]
    if not files and (found := find_split(path.parent, path.name, FORMS[1:])) is not None:
        files = [found]
    if not files:
        raise FileNotFoundError(f"questions to choose answers of must be in {path} or {path}.json, there is none")
    return [question for file in files for question in _file(file, columns)]


COLUMNS = (
    ("context", "question", "answers", "label"), ("article", "question", "options", "answer"),
    ("passage", "question", "choices", "label"), ("context", "question", "answer*", "label"),
    ("context", "question", "choice*", "label"), ("premise", "question", "choice*", "label"),
    ("sent1", "sent2", "ending*", "label"), ("ctx", "endings", "label"),
)  # fmt: skip
"""Columns that are taken where no others are named: the first that are all there."""
_SUFFIXES = (".json", ".jsonl", ".txt")


def _file(file: Path, columns: Sequence[str]) -> Iterator[Choices]:
    records = None if file.suffix in (".json", ".txt") else open_records(file)
    if records is not None and (file.suffix != ".jsonl" or columns or any(_usual(records))):
        yield from _rows(records, columns)
        return
    text = read_text(file)
    try:
        records = [json.loads(text)]
    except ValueError:
        try:  # splitlines() would cut a text at U+2028, which JSON may have within
            records = [json.loads(line) for line in text.split("\n") if line.strip()]
        except ValueError as error:
            raise ValueError(f"{file} must be JSON, or lines of it: {error}") from error
    if len(records) == 1 and isinstance(records[0], list):
        records = records[0]
    for number, record in enumerate(records, start=1):
        try:
            yield from _questions(record)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ValueError(
                f"{file}, number {number} must be a question in RACE's form, DREAM's, or an object of context, "
                f"question, answers and label: {_reason(error)}"
            ) from error


def _rows(records: Records, columns: Sequence[str]) -> Iterator[Choices]:
    """Read records of a text, perhaps a question, answers, and the right one's number, its letter or itself."""
    usual = [each for each in _usual(records) if each] or COLUMNS
    wanted = [part for name in columns for part in _numbered(records, name)]
    names = choose_columns(records, [wanted] if columns else usual, wanted)
    shape = columns or COLUMNS[_usual(records).index([*names])]
    if len(shape) not in (3, 4):
        raise ValueError(f"columns must be 3 or 4 names, of a text, a question, answers and a label, got {columns}")
    before = len(shape) - 2
    for where, (*texts, label) in records.values(*names):
        asked, answers = [*texts[:before], ""][:2], texts[before:]
        answers = answers[0] if len(answers) == 1 else answers
        try:
            yield _checked(*asked, answers, _number(label, answers))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error


def _usual(records: Records) -> list[list[str]]:
    """Return the columns that there are for each of `COLUMNS`; none where one is missing."""
    found = [[part for name in names for part in _numbered(records, name)] for names in COLUMNS]
    return [each if all(map(records.has, each)) else [] for each in found]


def _numbered(records: Records, name: str) -> list[str]:
    """Return the columns that a name with * behind stands for, by their numbers; itself without."""
    stem = name.removesuffix("*")
    found = {each: each.removeprefix(stem).strip("_") for each in records.names if each.startswith(stem)}
    numbers = {each: int(end) for each, end in found.items() if re.fullmatch("[0-9]{1,3}", end)}
    return sorted(numbers, key=numbers.__getitem__) or [name] if name.endswith("*") else [name]


def _number(label: Any, answers: Any) -> Any:
    """Return the number of an answer that a letter from A on, digits or the answer itself say."""
    if not isinstance(label, str) or (isinstance(answers, list) and label in answers):
        return answers.index(label) if isinstance(label, str) else label
    if re.fullmatch("[0-9]{1,3}", label):
        return int(label)
    return string.ascii_uppercase.index(label) if re.fullmatch("[A-Z]", label) else label


def _reason(error: Exception) -> str:
    """Say what is wrong with a record, also where Python says it in half a sentence."""
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]}"
    return f"{error}"[:200] or type(error).__name__


def _questions(record: Any) -> Iterator[Choices]:
    if isinstance(record, Mapping) and "article" in record:
        lists = [_list(record[name], name) for name in ("questions", "options", "answers")]
        if len({*map(len, lists)}) > 1:
            counts = ", ".join(str(len(each)) for each in lists)
            raise ValueError(f"questions, options and answers must be as many, got {counts}")
        for question, options, letter in zip(*lists, strict=True):
            if not isinstance(letter, str) or len(letter) != 1 or letter not in string.ascii_uppercase:
                raise ValueError(f"answers must be letters from A on, got {letter!r:.40}")
            yield _checked(record["article"], question, options, string.ascii_uppercase.index(letter))
    elif isinstance(record, Mapping):
        yield _checked(record["context"], record["question"], record["answers"], record["label"])
    else:
        turns, asked, *_ = _list(record, "a record")
        for each in _list(asked, "questions"):
            choice = _list(each["choice"], "choice")
            if each["answer"] not in choice:
                raise ValueError(f"the right answer must be among the choices, got {each['answer']!r:.80}")
            dialogue = "\n".join(_list(turns, "the dialogue"))
            yield _checked(dialogue, each["question"], choice, choice.index(each["answer"]))


def _list(value: Any, name: str) -> list:
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list, got {value!r:.40}")
    return value


def _checked(context: Any, question: Any, answers: Any, label: Any) -> Choices:
    """Make a question; an answer that stands among the choices again is left out, as both have one score."""
    answers = _list(answers, "answers")
    if wrong := [each for each in (context, question, *answers) if not isinstance(each, str)]:
        raise ValueError(f"text, question and answers must be texts, got {wrong[0]!r:.40}")
    texts_of("a question", text=" ".join([context, question, *answers]))
    if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < len(answers):
        raise ValueError(f"the label must be the number of an answer, from 0 to {len(answers) - 1}, got {label!r:.40}")
    different = tuple(dict.fromkeys(answers))
    if len(different) < 2:
        raise ValueError(f"there must be two answers at least, got {len(different)}")
    if not context.strip() or not all(each.strip() for each in different):
        raise ValueError("text and answers must not be empty")
    return Choices(context, question, different, different.index(answers[label]))


_DRINKS = ("tea", "coffee", "milk", "juice", "water", "cocoa")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")


def made_up_choices(split: str, count: int = 6_000) -> list[Choices]:
    """Make up dialogues of a man and a woman, and what either will drink or when: a thirtieth as many to test.

    Of four answers one is right, one is the other person's, and two say when where it is asked what, or the reverse.
    """
    draw = random.Random({"train": 0, "validation": 1, "test": 2}[split])
    questions = []
    for _ in range(count if split == "train" else count // 30):
        drinks, days = draw.sample(_DRINKS, 4), draw.sample(_DAYS, 4)
        said = {"M": (drinks[0], days[0]), "W": (drinks[1], days[1])}
        turns = [f"{who}: I would like {drink} on {day}." for who, (drink, day) in said.items()]
        draw.shuffle(turns)
        who, kind = draw.choice("MW"), draw.choice((0, 1))
        person = {"M": "man", "W": "woman"}[who]
        asked = (f"What would the {person} like?", f"When would the {person} like it?")[kind]
        answers = [*(drinks, days)[kind][:2], *(days, drinks)[kind][2:]]
        right = said[who][kind]
        draw.shuffle(answers)
        questions.append(Choices("\n".join(turns), asked, tuple(answers), answers.index(right)))
    return questions
