"""Images, and questions about each with their answers, that a json file tells.

Axes: B questions.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from flax_transformer.data.identity import digest
from flax_transformer.data.image.caption import NAMES, PLACES, held_out
from flax_transformer.data.image.image_set import Files, Images, ImageSet
from flax_transformer.data.json_line import (
    JsonLineSchema,
    check_disjoint,
    find_files,
    first_of,
    json_line_files,
    read_json_lines,
    texts_of,
)
from flax_transformer.frozen import frozen

LINES = JsonLineSchema(
    one="image",
    many="images and their questions",
    names=NAMES,
    said="questions",
    texts=("question", "text"),
    places=PLACES,
    besides="answers",
)
ANSWERS = "answers", "answer"
"""What a line may call what is right."""


@dataclass(frozen=True, eq=False)
class VisualQuestions(Sequence[Any]):
    """Questions about images, and the answers that are right."""

    images: Images
    """Each once."""
    of: Int[np.ndarray, " B"]
    """Which image a question is about."""
    questions: Sequence[str]
    answers: Sequence[tuple[str, ...]]

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Decode one: `image`, Pillow's, and its name, `question`, `answers`, and its number as `label`."""
        picture, said = int(self.of[index]), (self.questions[index], self.answers[index])
        named = {"name": self.images.name(picture), "label": int(index)}
        return {"image": self.images[picture], **dict(zip(("question", "answers"), said, strict=True)), **named}

    @cached_property
    def fingerprint(self) -> str:
        """Name which images, questions and answers they are."""
        told = json.dumps([list(self.questions), list(self.answers)])
        return digest(self.images.fingerprint, self.of.astype(np.int64), told)

    def take(self, indices: Int[np.ndarray, "_"]) -> "Asked":
        """Pick some images, with all questions about them."""
        place = {int(old): new for new, old in enumerate(indices)}
        kept = np.array([number for number, old in enumerate(self.of.tolist()) if old in place], np.int64)
        chosen = self.only(kept)
        return replace(
            chosen, images=self.images.take(indices), of=np.array([place[old] for old in chosen.of.tolist()], np.int64)
        )

    def only(self, numbers: Int[np.ndarray, "_"]) -> "Asked":
        """Pick some questions, of all images."""
        questions, answers = ([each[number] for number in numbers] for each in (self.questions, self.answers))
        return VisualQuestions(self.images, self.of[numbers], questions, answers)


@frozen
class QuestionData:
    """Images of a folder and questions, as JSON lines tell of them: `{"image": …, "question": …, "answers": […]}`.

    Which split a file is of, a word in its name says; a single file needs none. Images are looked for below the
    folder, and in its `images`; one may have many questions, all in one split.
    """

    root: str
    """The folder of the data."""
    holdout: float = 0.1
    """Share of the training images for each of validation and test that the folder lacks."""
    split_seed: int = 0
    """Which images these are."""
    single: bool = False
    """Whether questions of several answers are left out, in every split."""

    def open(self) -> ImageSet:
        """Open the images without decoding them.

        Raises:
          FileNotFoundError: no such folder.
          ValueError: no lines, a line without an image, a question or an answer, an image that is not there or in two
            splits; names the file and the line.
        """
        root = Path(self.root).expanduser()
        files = json_line_files(root, LINES)
        splits = {split: _read(root, path, single=self.single) for split, path in files.items()}
        check_disjoint(files, {split: each.images.names for split, each in splits.items()}, LINES)
        return ImageSet("questions", held_out(splits, self.holdout, self.split_seed))


def most_frequent(answers: Sequence[tuple[str, ...]], most: int) -> tuple[str, ...]:
    """Return the most frequent answers, each in so many questions; those that are as frequent by the alphabet.

    >>> most_frequent([("no",), ("yes", "no"), ("two",)], 2)
    ('no', 'two')
    """
    counts = Counter(answer for each in answers for answer in dict.fromkeys(each))
    return tuple(sorted(counts, key=lambda answer: (-counts[answer], answer))[:most])


def _read(root: Path, path: Path, *, single: bool) -> VisualQuestions:
    lines: dict[str, int] = {}
    numbers: dict[str, int] = {}
    of, questions, answers = [], [], []
    for number, where, name, said in read_json_lines(path, LINES):
        asked, told = texts_of(said, LINES.texts), texts_of(said, ANSWERS)
        if asked is None or len(asked) > 1:
            raise ValueError(
                f"{where}: the image {name} must have a question, a text, got {first_of(said, LINES.texts)!r:.60}"
            )
        if told is None:
            raise ValueError(
                f"{where}: the question {asked[0]!r:.60} must have answers, texts that are not empty, got "
                f"{first_of(said, ANSWERS)!r:.60}"
            )
        if single and len(told) > 1:
            continue
        lines.setdefault(name, number)
        of.append(numbers.setdefault(name, len(numbers)))
        questions.append(asked[0].strip())
        answers.append(tuple(each.strip() for each in told))
    if not questions:
        raise ValueError(f"{path} must have questions of a single answer, got none")
    return VisualQuestions(
        Files(root, find_files(root, path, lines, LINES)), np.array(of, np.int64), questions, answers
    )
