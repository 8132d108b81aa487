"""Visual question answering: examples of questions on images, accuracy, `ask`."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from flax_transformer.data import shuffled
from flax_transformer.data.examples import Arrays, Chain
from flax_transformer.data.identity import digest
from flax_transformer.data.image import (
    DecodedRows,
    ImageRows,
    each_image_once,
    load_images,
)
from flax_transformer.data.image.batch import Draw, image_batch
from flax_transformer.data.image.image_set import InMemoryImages, images_of
from flax_transformer.data.image.stream import epoch_indices
from flax_transformer.data.image.text import most_frequent
from flax_transformer.data.table import DataSet, Gathered, Table
from flax_transformer.data.text import Rows
from flax_transformer.frozen import frozen
from flax_transformer.hub import Pretrained
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.report.sample import save_image
from flax_transformer.task.checkpoint import File, image_processor_of, positions_of, require_use, tokenizer_of
from flax_transformer.task.classification import Label, class_probabilities, class_sample, ranked, telling
from flax_transformer.task.evaluator import Evaluator, Finished, Shown, tested
from flax_transformer.task.image_classification import LabelledImages
from flax_transformer.task.image_input import (
    image_stream,
    named_classes,
    normalised,
    opened,
    processor_of,
    read_image,
    shape_of,
)
from flax_transformer.task.opened import Context, Opened, VocabularyConfig, check_rows
from flax_transformer.task.retrieval import numbered
from flax_transformer.task.spec import Spec
from flax_transformer.task.text_classification import ROWS, LabelledTexts, encoder_tokenizer
from flax_transformer.text_table import align

SPLITS = ("train", "validation", "test")


@frozen
class HeldQuestions:
    """Held-out questions whose answers are among those that the model chooses from."""

    asked: Table
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
    asked: dict[str, Table]
    right: dict[str, Bool[np.ndarray, "B E"]]
    others: dict[str, int]
    """Of each split, the questions that are left out."""

    @classmethod
    def of(cls, found: DataSet, most: int) -> "Answerable":
        """Choose answers, and tell how many questions have none of them.

        Raises:
          ValueError: fewer than two answers, or a split without a question that has one of them.
        """
        classes = most_frequent(found.splits["train"]["answers"], most)
        if len(classes) < 2:
            raise ValueError(f"training questions must have at least two different answers, got {', '.join(classes)}")
        number = {answer: i for i, answer in enumerate(classes)}
        asked, right, others = {}, {}, {}
        for split in SPLITS:
            every = found.splits[split]
            known = [[number[answer] for answer in each if answer in number] for each in every["answers"]]
            kept = np.array([i for i, each in enumerate(known) if each], np.int64)
            if not len(kept):
                raise ValueError(f"questions of {split} must have answers that training questions have, none has")
            asked[split], others[split] = every.take(kept), len(every) - len(kept)
            right[split] = np.zeros((len(kept), len(classes)), bool)
            for row, i in enumerate(kept.tolist()):
                right[split][row, known[i]] = True
        made = cls(classes, asked, right, others)
        print(f"questions: {made.counts()}; {len(classes):,} answers", flush=True)
        return made

    def counts(self) -> str:
        """Return how many questions there are, and how many are beyond the answers."""
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
          data: has `open()`, which gives a `DataSet` of images with questions.
        """
        found = opened(data, "questions")
        settled, known = self._settled(context, found.channels), Answerable.of(found, self.answers)
        train, test = known.asked["train"], known.asked["test"]
        tokenizer = encoder_tokenizer(self.vocabulary, context, train["question"])
        shape, fixed = shape_of(found, settled.size), settled._fixed()
        normalise = normalised(settled.mean, settled.std, found.channels)
        tell = {
            split: Question.of(known.asked[split]["question"], known.labels(split), tokenizer, self.length)
            for split in SPLITS
        }

        def once(split: str) -> Iterable[Arrays]:
            images, *each = held_images(known.asked[split], fixed, settled.memory)
            with_question = partial(_both, tell[split], normalise)
            return each_image_once(
                images, *each, rows=context.held_rows(self.rows), collate=ImageRows(), normalise=with_question
            )

        before, after = settled.augment.batches(len(known.classes))
        return Opened(
            tokenizer=tokenizer,
            spec=Spec(
                uses=("visual-question-answering",), vocab=tokenizer.vocab_size, length=self.length, image=shape,
                classes=known.classes
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

    def _rows(self, asked: Table, shape: tuple[int, int, int], seed: int) -> Any:
        """Return the rows of training batches: of images in memory, if they are not changed one by one."""
        fixed = () if self.augment.area else self._fixed()
        asked, *rest = held_images(asked, fixed, self.memory)
        each = (*rest, *self.augment.examples(shape[:2], self.resample))
        if each or not isinstance(images_of(asked), InMemoryImages):
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

    def read(self, split: str) -> Table:
        return Table({"text": self.known.asked[split]["question"], "label": self.known.labels(split).tolist()})

    def classes(self) -> tuple[str, ...]:
        return self.known.classes


@dataclass(frozen=True, eq=False)
class AskedRows:
    """Questions and images in memory, all questions in random order, epoch after epoch."""

    asked: Table
    seed: int

    @property
    def identity(self) -> dict[str, Any]:
        """Name images, questions and order."""
        return {"data": self.asked.fingerprint, "seed": self.seed}

    def read(self, numbers: Int[np.ndarray, " B"]) -> Arrays:
        """Pick rows; what they are labelled with are the questions' numbers."""
        indices = epoch_indices(numbers, len(self.asked), self.seed)
        image = self.asked["image"]
        pixels = image.source.pixels[image.of[indices]]
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


def held_images(asked: Table, fixed: Sequence[Any], memory: int) -> tuple[Any, ...]:
    """Return questions with their images made one size and held in memory; else as they are, and what makes the size.

    Args:
      memory: MiB that they may take.
    """
    kept = load_images(numbered(images_of(asked)), *fixed, limit=memory << 20)
    return (asked, *fixed) if kept is None else (asked.with_columns(image=Gathered(kept["image"], asked["image"].of)),)


def _both(attach: Question, normalise: Any, batch: Arrays) -> Arrays:
    return normalise(attach(batch))


def _seen(asked: Table, fixed: Sequence[Any], index: int) -> Any:
    """Return the image of a question as the model sees it."""
    return Chain(tuple(fixed))(asked[index], np.random.default_rng(0))["image"]


@frozen
class VisualAnswers(Evaluator):
    """Measure how many test questions, which are `HeldQuestions`, get an answer that is right, and show some.

    Those whose answers the model cannot give count as wrong.
    """

    takes: ClassVar[type] = HeldQuestions
    metric: ClassVar[str] = "accuracy"

    kinds: int = 6
    """Kinds of questions shown on the terminal, the most frequent: by how they begin."""

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        held, names = finished.opened.held, finished.opened.spec.classes
        metrics = dict(tested(finished.objective, finished.model, finished.opened.test()))
        probabilities = class_probabilities(finished)
        predicted = probabilities.argmax(axis=1)
        good = held.right[np.arange(len(predicted)), predicted]
        asked = len(good) + held.others
        metrics["accuracy"] = float(good.sum() / asked)
        truth = np.where(good, predicted, held.right.argmax(axis=1))
        samples = [self._sample(finished, names, probabilities[i], int(i)) for i in telling(truth, probabilities)]
        beyond = f", {held.others:,} of them of answers that it cannot give" if held.others else ""
        headline = f"test accuracy {100 * metrics['accuracy']:.2f} % on {asked:,} questions{beyond}"
        return Shown(
            metrics=metrics, samples=samples, lines=("", self._table(held.asked["question"], good), "", headline)
        )

    def _sample(
        self, finished: Finished, names: tuple[str, ...], probabilities: Float[np.ndarray, "E"], index: int
    ) -> dict[str, Any]:
        """Return the sample of one question: its image, if the model sees one, the right answer and the model's."""
        held = finished.opened.held
        seen = {}
        if held.show is not None:
            seen["picture"] = save_image(finished.folder.root, str(index), held.show(index))
        answers = ", ".join(held.asked["answers"][index])
        return {**seen, "source": held.asked["question"][index], **class_sample(names, answers, probabilities)}

    def _table(self, questions: Any, good: Bool[np.ndarray, " B"]) -> str:
        """Return how often questions that begin alike are answered rightly."""
        kinds = [" ".join(question.split()[:2]) for question in questions]
        rows = [("questions that begin", "asked", "right")]
        for kind, count in Counter(kinds).most_common(self.kinds):
            here: Int[np.ndarray, "_"] = np.flatnonzero([each == kind for each in kinds])
            rows.append((f"{kind} …", f"{count:,}", f"{100 * good[here].mean():.2f} %"))
        return align(rows, "lrr")


def ask(pretrained: Pretrained, image: File | Any, questions: Sequence[str]) -> list[list[Label]]:
    """Answer questions about an image.

    Args:
      image: a file, or one of Pillow's.

    Returns:
      For each question all answers that the model knows, the most probable first.

    Raises:
      ValueError: a checkpoint of another kind, or of regions that a detector must have found; a file that is no
        image; a question that is empty or longer than the positions.
    """
    known, name = pretrained.architecture.inputs, pretrained.config["architectures"][0]
    if "regions" in known.reads:
        raise ValueError(
            f"a {name} answers by regions that a detector found in an image, which it is called with as "
            f"{' and '.join(each for each in known.needs if each.startswith('visual'))}; it was given the image"
        )
    require_use(pretrained, "visual-question-answering", "images")
    tokenizer = tokenizer_of(pretrained, *questions)
    for question in questions:
        count, room = len(tokenizer([question])["input_ids"][0]), positions_of(pretrained.model.cfg)
        if not question.strip() or (room is not None and count > room):
            size = f"{count} of {question!r:.40}" if question.strip() else "none"
            raise ValueError(f"a question must have words, of at most {room} tokens, got {size}")
    image = image if hasattr(image, "getbands") else read_image(pretrained, image)
    seen = image_processor_of(pretrained)(image)
    found: list[list[Label]] = []
    for i in range(0, len(questions), ROWS):
        words = tokenizer(questions[i : i + ROWS])
        rows = len(words["input_ids"])
        repeated = {key: np.repeat(value, rows, axis=0) for key, value in seen.items()}
        found += ranked(pretrained, np.asarray(pretrained(**words, **repeated).logits.astype(np.float32)))
    return found
