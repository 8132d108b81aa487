"""Images and questions about them, for models that choose an answer; and questions alone, for those that see none.

Axes: B questions, T positions, E answers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from flax_transformer.data import shuffled
from flax_transformer.data.examples import Arrays, Chain
from flax_transformer.data.identity import digest
from flax_transformer.data.image import DecodedRows, ImageRows, Pictures, VisualQuestions, each_image_once, load_images
from flax_transformer.data.image.batch import Draw, image_batch
from flax_transformer.data.image.image_set import ImageSet, InMemoryImages
from flax_transformer.data.image.question import most_frequent
from flax_transformer.data.image.stream import epoch_indices
from flax_transformer.data.text import Rows
from flax_transformer.data.text.labelled import Labelled
from flax_transformer.frozen import frozen
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.task.example.image import (
    LabelledImages,
    image_stream,
    named_classes,
    normalised,
    opened,
    processor_of,
    shape_of,
)
from flax_transformer.task.example.label import LabelledTexts, encoder_tokenizer
from flax_transformer.task.example.opened import Context, Opened, VocabularyConfig, check_rows
from flax_transformer.task.spec import Spec

SPLITS = ("train", "validation", "test")


@frozen
class HeldQuestions:
    """Held-out questions whose answers are among those that the model chooses from."""

    asked: VisualQuestions
    right: Bool[np.ndarray, "B E"]
    """Which answers are right."""
    others: int
    """Questions besides, of answers that the model cannot give."""
    show: Any = None
    """Gives an image of Pillow's as the model sees it, by its number; None: the model sees none."""


@dataclass(frozen=True)
class Answerable:
    """Questions of every split whose answers are among the most frequent of the training questions."""

    classes: tuple[str, ...]
    asked: dict[str, VisualQuestions]
    right: dict[str, Bool[np.ndarray, "B E"]]
    others: dict[str, int]
    """Of each split, the questions that are left out."""

    @classmethod
    def of(cls, found: ImageSet, most: int) -> "Answerable":
        """Choose answers, and tell how many questions have none of them.

        Raises:
          ValueError: fewer than two answers, or a split without a question that has one of them.
        """
        classes = most_frequent(found.splits["train"].answers, most)
        if len(classes) < 2:
            raise ValueError(f"training questions must have at least two different answers, got {', '.join(classes)}")
        number = {answer: i for i, answer in enumerate(classes)}
        asked, right, others = {}, {}, {}
        for split in SPLITS:
            every = found.splits[split]
            known = [[number[answer] for answer in each if answer in number] for each in every.answers]
            kept = np.array([i for i, each in enumerate(known) if each], np.int64)
            if not len(kept):
                raise ValueError(f"questions of {split} must have answers that training questions have, none has")
            asked[split], others[split] = every.only(kept), len(every) - len(kept)
            right[split] = np.zeros((len(kept), len(classes)), bool)
            for row, i in enumerate(kept.tolist()):
                right[split][row, known[i]] = True
        made = cls(classes, asked, right, others)
        print(f"questions: {made.told()}; {len(classes):,} answers", flush=True)
        return made

    def told(self) -> str:
        """Say how many questions there are, and how many are beyond the answers."""
        left = {"train": "left out", "validation": "left out", "test": "wrong whatever is said"}
        beyond = {split: f" and {count:,} of other answers, {left[split]}" for split, count in self.others.items()}
        return ", ".join(
            f"{len(self.asked[split]):,} {split}{beyond[split] * bool(self.others[split])}" for split in SPLITS
        )

    def labels(self, split: str) -> Int[np.ndarray, " B"]:
        """Return the answer that is learned of each question: of several the most frequent."""
        return self.right[split].argmax(axis=1).astype(np.int32)

    def held(self, show: Any = None) -> HeldQuestions:
        """Return what a finished model is tested on."""
        return HeldQuestions(asked=self.asked["test"], right=self.right["test"], others=self.others["test"], show=show)


@frozen
class AskedImages(LabelledImages):
    """Lay out a question and its image a row, of which the answer is the class; held out are `HeldQuestions`."""

    vocabulary: VocabularyConfig = VocabularyConfig(size=2_000)
    """Of a new model; one that begins with a checkpoint has the checkpoint's."""
    length: int = 32
    """Most tokens of a question; longer ones are cut."""
    answers: int = 1_000
    """From how many the model chooses at most: the most frequent of the training questions."""

    def __post_init__(self):
        super().__post_init__()
        check_rows(self.rows, self.length, 3)
        if self.answers < 2:
            raise ValueError(f"answers must be at least 2, got {self.answers}")
        if self.augment.mixup or self.augment.cutmix:
            raise ValueError("images with questions are not mixed, got augment.mixup or augment.cutmix")

    @property
    def positions(self) -> int:
        """How many positions a model must have."""
        return self.length

    def open(self, data: Any, context: Context) -> Opened:
        """Open images and questions, choose the answers, learn or load the tokenizer.

        Args:
          data: has `open()`, which gives an `ImageSet` of questions.
        """
        found = opened(data, "questions")
        settled, known = self._settled(context, found.channels), Answerable.of(found, self.answers)
        train, test = known.asked["train"], known.asked["test"]
        tokenizer = encoder_tokenizer(self.vocabulary, context, train.questions)
        shape, fixed = shape_of(found, settled.size), settled._fixed()
        normalise = normalised(settled.mean, settled.std, found.channels)
        tell = {
            split: Question.of(known.asked[split].questions, known.labels(split), tokenizer, self.length)
            for split in SPLITS
        }

        def once(split: str) -> Iterable[Arrays]:
            pictures, *each = held_images(known.asked[split], fixed, settled.memory)
            told = partial(_both, tell[split], normalise)
            return each_image_once(
                pictures, *each, rows=context.held_rows(self.rows), collate=ImageRows(), normalise=told
            )

        before, after = settled.augment.batches(len(known.classes))
        return Opened(
            tokenizer=tokenizer,
            spec=Spec(
                uses=("ask",), vocab=tokenizer.vocab_size, length=self.length, image=shape, classes=known.classes
            ),
            batches=image_stream(
                settled._rows(train, shape, context.seed), tell["train"], *before, normalise, *after, rows=self.rows,
                seed=context.seed,
            ),
            validation=partial(once, "validation"),
            test=partial(once, "test"),
            held=known.held(partial(_seen, test, fixed)),
            processor=processor_of(fixed, normalise),
            fields=named_classes(known.classes),
        )  # fmt: skip

    def _rows(self, asked: VisualQuestions, shape: tuple[int, int, int], seed: int) -> Any:
        """Return the rows of training batches: of images in memory, if they are not changed one by one."""
        fixed = () if self.augment.area else self._fixed()
        asked, *rest = held_images(asked, fixed, self.memory)
        each = (*rest, *self.augment.examples(shape[:2], self.resample))
        if each or not isinstance(asked.images, InMemoryImages):
            return DecodedRows(shuffled(asked, *each, seed=seed), ImageRows())
        return AskedRows(asked, seed)


@frozen
class AskedTexts(LabelledTexts):
    """Lay out a question a row without its image, of which the answer is the class; held out are `HeldQuestions`."""

    answers: int = 1_000
    """From how many the model chooses at most: the most frequent of the training questions."""

    def open(self, data: Any, context: Context) -> Opened:
        """Read the questions; arguments as `AskedImages.open`'s."""
        known = Answerable.of(opened(data, "questions"), self.answers)
        return replace(super().open(_Questions(known), context), held=known.held())


@dataclass(frozen=True, eq=False)
class _Questions:
    """Questions as labelled texts."""

    known: Answerable

    def read(self, split: str) -> Labelled:
        return Labelled(self.known.asked[split].questions, self.known.labels(split).tolist())

    def classes(self) -> tuple[str, ...]:
        return self.known.classes


@dataclass(frozen=True, eq=False)
class AskedRows:
    """Questions and images in memory, all questions in random order, epoch after epoch."""

    asked: VisualQuestions
    seed: int

    @property
    def identity(self) -> dict[str, Any]:
        """Name images, questions and order."""
        return {"data": self.asked.fingerprint, "seed": self.seed}

    def read(self, numbers: Int[np.ndarray, " B"]) -> Arrays:
        """Pick rows; what they are labelled with are the questions' numbers."""
        indices = epoch_indices(numbers, len(self.asked), self.seed)
        pixels = self.asked.images.pixels[self.asked.of[indices]]
        return image_batch(pixels, indices.astype(np.int32), np.ones(len(numbers), np.float32))


@dataclass(frozen=True, eq=False)
class Question:
    """Put a question beside each image of a batch, by the question's number, and its answer for the number."""

    tokens: Sequence[Int[np.ndarray, "_"]]
    labels: Int[np.ndarray, " B"]
    collate: Rows

    @classmethod
    def of(
        cls, questions: Sequence[str], labels: Int[np.ndarray, " B"], tokenizer: HubTokenizer, length: int
    ) -> "Question":
        """Encode questions, cut to a length."""
        inputs = tokenizer(list(questions), max_length=length, truncate=True, side="right")
        ends = inputs["attention_mask"].sum(1)
        rows = [ids[:end] for ids, end in zip(inputs["input_ids"], ends, strict=True)]
        return cls(rows, labels, Rows(length=length, pad=0 if tokenizer.pad is None else tokenizer.pad))

    @cached_property
    def fingerprint(self) -> str:
        """Name the questions, answers and how they are laid out."""
        return digest(repr(self.collate), self.labels, *self.tokens)

    def __call__(self, batch: Arrays, draw: Draw | None = None) -> Arrays:
        """Add `tokens` and `lengths`; answers are the labels."""
        numbers = batch["labels"]
        rows = self.collate([{"tokens": self.tokens[number]} for number in numbers.tolist()])
        return {**batch, "inputs": {**batch["inputs"], **rows["inputs"]}, "labels": self.labels[numbers]}


def held_images(asked: VisualQuestions, fixed: Sequence[Any], memory: int) -> tuple[Any, ...]:
    """Return questions with their images made one size and held in memory; else as they are, and what makes the size.

    Args:
      memory: MiB that they may take.
    """
    numbered = Pictures(asked.images, np.arange(len(asked.images), dtype=np.int32))
    kept = load_images(numbered, *fixed, limit=memory << 20)
    return (asked, *fixed) if kept is None else (replace(asked, images=kept.images),)


def _both(told: Question, normalise: Any, batch: Arrays) -> Arrays:
    return normalise(told(batch))


def _seen(asked: VisualQuestions, fixed: Sequence[Any], index: int) -> Any:
    """Return the image of a question as the model sees it."""
    return Chain(tuple(fixed))(asked[index], np.random.default_rng(0))["image"]
