"""Images with texts that JSON lines tell of: captions, or questions with their answers.

Axes: B images or questions.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from flax_transformer.data.identity import digest
from flax_transformer.data.image.image_set import Files, Images, ImageSet
from flax_transformer.data.json_line import (
    JsonLineSchema,
    check_disjoint,
    find_files,
    first_of,
    json_line_files,
    open_json_lines,
    read_json_lines,
    texts_of,
)
from flax_transformer.data.split import complete_splits, normal
from flax_transformer.frozen import frozen

NAMES = "image", "file_name", "filename"
"""What a line may call its image."""


PLACES = "", "images", "Images", "pictures"
"""Where images are, below the folder."""


LINES = JsonLineSchema(
    one="image",
    many="images and their captions",
    names=NAMES,
    said="captions",
    texts=("captions", "caption", "text"),
    places=PLACES,
)


@dataclass(frozen=True, eq=False)
class Captioned(Sequence[Any]):
    """Images and the captions of each."""

    images: Images
    captions: Sequence[tuple[str, ...]]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Decode one: `image`, Pillow's, and its `captions`."""
        return {"image": self.images[index], "captions": self.captions[index]}

    @property
    def fingerprint(self) -> str:
        """Name which images and captions they are."""
        return digest(self.images.fingerprint, json.dumps(list(self.captions)))

    def take(self, indices: Int[np.ndarray, "_"]) -> "Captioned":
        """Pick some."""
        return Captioned(self.images.take(indices), [self.captions[index] for index in indices])


@frozen
class CaptionData:
    """Images of a folder and captions, as files of JSON lines tell of them: `{"image": …, "captions": […]}` each.

    Which split a file is of, a word in its name says; a single file needs none. Images are looked for below the
    folder, and in its `images`.
    """

    root: str
    """The folder of the data."""
    holdout: float = 0.1
    """Share of the training images for each of validation and test that the folder lacks."""
    split_seed: int = 0
    """Which images these are."""

    def open(self) -> ImageSet:
        """Open the images without decoding them; errors as `open_captions`."""
        return open_captions(Path(self.root), holdout=self.holdout, seed=self.split_seed)


def open_captions(root: Path, *, holdout: float = 0.1, seed: int = 0) -> ImageSet:
    """Open images and captions, and hold out a part where there is no such split.

    Raises:
      FileNotFoundError: no such folder.
      ValueError: no lines, a line without an image or a caption, an image that is not there or named twice; names
          the file and the line.
    """
    splits = {
        split: Captioned(Files(each.root, each.names), each.texts)
        for split, each in open_json_lines(root, LINES).items()
    }
    return ImageSet("captions", held_out(splits, holdout, seed))


def held_out(splits: Mapping[str, Any], holdout: float, seed: int) -> dict[str, Any]:
    """Hold out images for the splits that there are not; by their names, whose order says nothing."""
    return complete_splits(splits, _names, _one_class, share=holdout, seed=seed)


def _names(images: Any) -> list[str]:
    return [normal(name) for name in images.images.names]


def _one_class(images: Any) -> Int[np.ndarray, " B"]:
    return np.zeros(len(images.images), np.int32)


QUESTION_LINES = JsonLineSchema(
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
        image, said = int(self.of[index]), (self.questions[index], self.answers[index])
        named = {"name": self.images.name(image), "label": int(index)}
        return {"image": self.images[image], **dict(zip(("question", "answers"), said, strict=True)), **named}

    @cached_property
    def fingerprint(self) -> str:
        """Name which images, questions and answers they are."""
        texts = json.dumps([list(self.questions), list(self.answers)])
        return digest(self.images.fingerprint, self.of.astype(np.int64), texts)

    def take(self, indices: Int[np.ndarray, "_"]) -> "VisualQuestions":
        """Pick some images, with all questions about them."""
        place = {int(old): new for new, old in enumerate(indices)}
        kept = np.array([number for number, old in enumerate(self.of.tolist()) if old in place], np.int64)
        chosen = self.only(kept)
        return replace(
            chosen, images=self.images.take(indices), of=np.array([place[old] for old in chosen.of.tolist()], np.int64)
        )

    def only(self, numbers: Int[np.ndarray, "_"]) -> "VisualQuestions":
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
        files = json_line_files(root, QUESTION_LINES)
        splits = {split: _read(root, path, single=self.single) for split, path in files.items()}
        check_disjoint(files, {split: each.images.names for split, each in splits.items()}, QUESTION_LINES)
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
    for number, where, name, said in read_json_lines(path, QUESTION_LINES):
        asked, answer_texts = texts_of(said, QUESTION_LINES.texts), texts_of(said, ANSWERS)
        if asked is None or len(asked) > 1:
            raise ValueError(
                f"{where}: the image {name} must have a question, a text, "
                f"got {first_of(said, QUESTION_LINES.texts)!r:.60}"
            )
        if answer_texts is None:
            raise ValueError(
                f"{where}: the question {asked[0]!r:.60} must have answers, texts that are not empty, got "
                f"{first_of(said, ANSWERS)!r:.60}"
            )
        if single and len(answer_texts) > 1:
            continue
        lines.setdefault(name, number)
        of.append(numbers.setdefault(name, len(numbers)))
        questions.append(asked[0].strip())
        answers.append(tuple(each.strip() for each in answer_texts))
    if not questions:
        raise ValueError(f"{path} must have questions of a single answer, got none")
    return VisualQuestions(
        Files(root, find_files(root, path, lines, QUESTION_LINES)), np.array(of, np.int64), questions, answers
    )
