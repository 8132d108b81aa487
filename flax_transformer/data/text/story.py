"""Stories and questions about them: the twenty tasks of bAbI (Weston et al. 2015, https://arxiv.org/abs/1502.05698).

Axes: N questions, F facts of all stories one after another, W words of a sentence, B rows, S sentences of a row.
"""

import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Int

from flax_transformer.data.bucket import Indices
from flax_transformer.data.examples import Arrays
from flax_transformer.data.identity import digest
from flax_transformer.data.split import SPLITS
from flax_transformer.data.text.plain import decode
from flax_transformer.frozen import frozen

_FILE = re.compile(r"(?:.*/)?qa([0-9]{1,3})(?:_([a-z0-9-]+))?_(train|valid|test)\.txt")
_WORD = re.compile(r"\w+")
FIRST = 2
"""Numbers of words begin here, after that of no word, 0, and that of one that the training stories have not."""


@dataclass(frozen=True)
class StoryQuestion:
    """A question about the sentences that were told before it."""

    facts: Sequence[str]
    question: str
    answer: str


@frozen
class StoryTasks:
    """Files of bAbI, `qa1_…_train.txt` and so on: a folder of them, or the `.tar.gz` of one.

    Without files of their own, validation questions are those of the last stories of training.
    """

    root: str = ""
    tasks: tuple[int, ...] = ()
    """Which; by default all that have a training file."""
    holdout: float = 0.1
    """The share of training stories that validation has, where it has no files."""

    def __post_init__(self) -> None:
        if not 0 < self.holdout < 1:
            raise ValueError(f"holdout must be a share in (0, 1), got {self.holdout}")

    def read(self) -> dict[str, dict[str, list[StoryQuestion]]]:
        """Read all tasks: by their names, the questions of `train`, `validation` and `test`.

        Raises:
            ValueError: no folder or archive is named, it has no such files, or not one that is asked for, or a file is
                no file of stories; says which, and the line.
        """
        files = self._files()
        numbers = self.tasks or tuple(sorted(number for number, split in files if split == "train"))
        if not numbers:
            raise ValueError(f"{self.root} must have files of bAbI, qa1_…_train.txt and so on, it has none")
        return dict(self._task(files, number) for number in numbers)

    def _task(self, files: Mapping, number: int) -> tuple[str, dict[str, list[StoryQuestion]]]:
        for split in ("train", "test"):
            if (number, split) not in files:
                raise ValueError(f"{self.root} must have a file qa{number}_…_{split}.txt of each task, it has none")
        name, found = files[number, "train"][0], {}
        stories = list(read_stories(*files[number, "train"][1:]))
        held = max(1, round(len(stories) * self.holdout))
        if (number, "valid") in files:
            found["validation"] = list(read_stories(*files[number, "valid"][1:]))
        elif len(stories) <= held:
            raise ValueError(f"{files[number, 'train'][1]} must have stories to hold out, got {len(stories)} in all")
        else:
            stories, found["validation"] = stories[:-held], stories[-held:]
        found |= {"train": stories, "test": list(read_stories(*files[number, "test"][1:]))}
        return name, {split: [each for story in found[split] for each in story] for split in SPLITS}

    def _files(self) -> dict[tuple[int, str], tuple[str, str, str]]:
        """Find files: of a task's number and split its name, where it is and what it says."""
        if not self.root:
            raise ValueError("stories are read from a folder of bAbI's files, or the .tar.gz of one: give --data.root")
        files = {}
        for path, content in _contents(Path(self.root)):
            match = _FILE.fullmatch(path)
            if match:
                number, title, split = match.groups()
                files[int(number), split] = (f"{number} {(title or '').replace('-', ' ')}".strip(), path, content)
        return files


def _contents(root: Path) -> Iterator[tuple[str, str]]:
    """Read the files of a folder or archive that may be bAbI's."""
    if root.is_dir():
        for path in sorted(root.iterdir()):
            if _FILE.fullmatch(path.name):
                yield path.name, decode(path)
        return
    if not root.is_file():
        raise FileNotFoundError(f"{root} must be a folder of bAbI's files, or the .tar.gz of one; there is none")
    try:
        with tarfile.open(root) as archive:
            for member in archive:
                if member.isfile() and _FILE.fullmatch(member.name):
                    yield member.name, archive.extractfile(member).read().decode()
    except (tarfile.TarError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{root} must be a folder of texts in UTF-8, or the .tar.gz of one; it is neither") from error


def read_stories(path: str, content: str) -> Iterator[list[StoryQuestion]]:
    r"""Take the questions out of lines as `3 Where is John? TAB hallway TAB 1`; a story begins where numbers do.

    >>> list(read_stories("qa1_test.txt", "1 John ran.\n2 Who ran?\tJohn\t1\n"))
    [[StoryQuestion(facts=('John ran.',), question='Who ran?', answer='John')]]

    Raises:
        ValueError: a line without a number or without words, or a question without an answer.
    """
    facts, story, before = [], [], 0
    for line, row in enumerate(content.splitlines(), start=1):
        number, _, text = row.partition(" ")
        if not number.isdecimal() or not _WORD.search(text):
            raise ValueError(f"{path}, line {line}: a line must be a number and a sentence, got {row[:60]!r}")
        if int(number) <= before:
            yield story
            facts, story = [], []
        before = int(number)
        question, *rest = text.split("\t")
        if not rest:
            facts.append(text)
        elif rest[0].strip():
            story.append(StoryQuestion(tuple(facts), question.strip(), rest[0].strip()))
        else:
            raise ValueError(f"{path}, line {line}: a question must have an answer after a tab, got {row[:60]!r}")
    yield story


def split_words(sentence: str) -> list[str]:
    """Split a sentence into words, in small letters, without punctuation."""
    return _WORD.findall(sentence.lower())


@dataclass(frozen=True, eq=False)
class Stories:
    """Questions as numbers of words; each knows which of all facts were told before it."""

    facts: Int[np.ndarray, "F W"]
    begin: Int[np.ndarray, " N"]
    end: Int[np.ndarray, " N"]
    questions: Int[np.ndarray, "N W"]
    labels: Int[np.ndarray, " N"]
    tasks: Int[np.ndarray, " N"]

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of all of it."""
        return digest(*(np.ascontiguousarray(part) for part in vars(self).values() if isinstance(part, np.ndarray)))

    @property
    def identity(self) -> dict[str, str]:
        """Name the questions."""
        return {"data": self.fingerprint}

    @property
    def lengths(self) -> Int[np.ndarray, "N 2"]:
        """Count the facts of each question, twice, as a `BucketPlan` takes the two sides of a row."""
        return np.stack([self.end - self.begin] * 2, axis=1)

    def lay_out(self, indices: Indices, width: int) -> Arrays:
        """Lay questions out as one batch; index -1 makes an empty row.

        A row [S, W], of S = ``width`` sentences, is the question, then the facts before it, the latest first, so that a
        sentence's place says how long ago it was told. Beside `labels` and `weights` it has the `task` and the `index`
        of each row.
        """
        tokens = np.zeros((len(indices), width, self.questions.shape[1]), np.int32)
        lengths = np.zeros(len(indices), np.int32)
        for row, index in enumerate(indices.tolist()):
            if index >= 0:
                facts = self.facts[self.begin[index] : self.end[index]][::-1]
                tokens[row, 0], tokens[row, 1 : 1 + len(facts)] = self.questions[index], facts
                lengths[row] = 1 + len(facts)
        there = indices >= 0
        at = np.where(there, indices, 0)
        return {
            "inputs": {"sentences": tokens, "lengths": lengths},
            "labels": np.where(there, self.labels[at], 0).astype(np.int32),
            "weights": there.astype(np.float32),
            "task": np.where(there, self.tasks[at], 0).astype(np.int32),
            "index": indices.astype(np.int32),
        }


def number_stories(
    tasks: Iterable[Sequence[StoryQuestion]],
    words: Mapping[str, int],
    answers: Mapping[str, int],
    *,
    width: int,
    most: int,
) -> Stories:
    """Turn the questions of several tasks into numbers.

    Args:
        words: numbers of words, from `FIRST` on.
        answers: numbers of answers.
        width: W; later words of a sentence are left out.
        most: facts of a question at most, the latest.

    Raises:
        ValueError: a question whose answer has no number.
    """
    facts: list[list[int]] = []
    rows: dict[str, list] = {name: [] for name in ("begin", "end", "questions", "labels", "tasks")}
    numbered: dict[str, list[int]] = {}

    def number(sentence: str) -> list[int]:
        if sentence not in numbered:
            known = [words.get(word, FIRST - 1) for word in split_words(sentence)][:width]
            numbered[sentence] = known + [0] * (width - len(known))
        return numbered[sentence]

    for task, questions in enumerate(tasks):
        for each in questions:
            if each.answer not in answers:
                raise ValueError(
                    f"an answer must be one that a training question has, got {each.answer!r} of {each.question!r}"
                )
            recent = each.facts[-most:]
            begin = len(facts)
            facts += map(number, recent)
            values = (begin, len(facts), number(each.question), answers[each.answer], task)
            for name, value in zip(rows, values, strict=True):
                rows[name].append(value)
    made = {name: np.array(values, np.int32) for name, values in rows.items()}
    return Stories(facts=np.array(facts, np.int16).reshape(-1, width), **made)
