"""Images with texts that JSON lines tell of: captions, or questions with their answers.

Axes: B images or questions.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from flax_transformer.data.image.image_set import Files, Images, images_of
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
from flax_transformer.data.table import DataSet, Gathered, Names, Numbers, Table
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


def captioned_images(images: Images, captions: Sequence[tuple[str, ...]]) -> Table:
    """Put images and the captions of each in a table: `image`, `captions`, `name`."""
    return Table({"image": images, "captions": list(captions), "name": Names(images)})


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

    def open(self) -> DataSet:
        """Open the images without decoding them; errors as `open_captions`."""
        return open_captions(Path(self.root), holdout=self.holdout, seed=self.split_seed)


def open_captions(root: Path, *, holdout: float = 0.1, seed: int = 0) -> DataSet:
    """Open images and captions, and hold out a part where there is no such split.

    Raises:
      FileNotFoundError: no such folder.
      ValueError: no lines, a line without an image or a caption, an image that is not there or named twice; names
          the file and the line.
    """
    splits = {
        split: captioned_images(Files(each.root, each.names), each.texts)
        for split, each in open_json_lines(root, LINES).items()
    }
    return DataSet(held_out(splits, holdout, seed, root), kind="captions")


def held_out(splits: Mapping[str, Any], holdout: float, seed: int, where: str | os.PathLike) -> dict[str, Any]:
    """Hold out images for the splits that there are not; by their names, whose order says nothing."""
    return complete_splits(splits, _names, _one_class, share=holdout, seed=seed, where=where, take=_take)


def _names(table: Table) -> list[str]:
    return [normal(name) for name in images_of(table).names]


def _one_class(table: Table) -> Int[np.ndarray, " B"]:
    return np.zeros(len(images_of(table)), np.int32)


def _take(table: Table, indices: Int[np.ndarray, "_"]) -> Table:
    return take_images(table, indices) if isinstance(table["image"], Gathered) else table.take(indices)


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


def visual_questions(
    images: Images, of: Int[np.ndarray, " B"], questions: Sequence[str], answers: Sequence[tuple[str, ...]]
) -> Table:
    """Put questions about images in a table.

    Its columns are `image`, `question`, `answers`, those that are right, `name`, the image's, and `label`, the number
    of the question in the table.

    Args:
      images: each once.
      of: which image a question is about.
      questions: as they are asked.
      answers: of each question.
    """
    image = Gathered(images, of)
    texts = {"question": list(questions), "answers": list(answers)}
    return Table({"image": image, **texts, "name": Names(image), "label": Numbers(len(texts["question"]))})


def take_images(asked: Table, indices: Int[np.ndarray, "_"]) -> Table:
    """Pick some images of a table of questions, with all questions about them."""
    image, new = asked["image"], {int(old): number for number, old in enumerate(indices)}
    taken = asked.take(np.flatnonzero(np.isin(image.of, indices)))
    of = np.array([new[old] for old in taken["image"].of.tolist()], np.int64)
    image = Gathered(image.source.take(indices), of)
    return taken.with_columns(image=image, name=Names(image))


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

    def open(self) -> DataSet:
        """Open the images without decoding them.

        Raises:
          FileNotFoundError: no such folder.
          ValueError: no lines, a line without an image, a question or an answer, an image that is not there or in two
            splits; names the file and the line.
        """
        splits = open_questions(Path(self.root), single=self.single)
        return DataSet(held_out(splits, self.holdout, self.split_seed, self.root), kind="questions")


def open_questions(root: Path, *, single: bool = False) -> dict[str, Table]:
    """Read the splits that a folder has; errors as `QuestionData.open`."""
    root = root.expanduser()
    files = json_line_files(root, QUESTION_LINES)
    splits = {split: _read(root, path, single=single) for split, path in files.items()}
    check_disjoint(files, {split: images_of(each).names for split, each in splits.items()}, QUESTION_LINES)
    return splits


def most_frequent(answers: Sequence[tuple[str, ...]], most: int) -> tuple[str, ...]:
    """Return the most frequent answers, each in so many questions; those that are as frequent by the alphabet.

    >>> most_frequent([("no",), ("yes", "no"), ("two",)], 2)
    ('no', 'two')
    """
    counts = Counter(answer for each in answers for answer in dict.fromkeys(each))
    return tuple(sorted(counts, key=lambda answer: (-counts[answer], answer))[:most])


def _read(root: Path, path: Path, *, single: bool) -> Table:
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
    return visual_questions(
        Files(root, find_files(root, path, lines, QUESTION_LINES)), np.array(of, np.int64), questions, answers
    )
