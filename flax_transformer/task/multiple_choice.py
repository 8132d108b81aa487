"""Multiple choice: examples of texts, questions and answers, accuracy, and `choose_answer`.

Axes: B rows, A choices, T positions.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from flax_transformer.data.examples import Arrays, Example
from flax_transformer.data.text import Rows
from flax_transformer.data.text.choice import ChoiceData, Choices
from flax_transformer.frozen import frozen
from flax_transformer.hub import Pretrained
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.task.checkpoint import positions_of, require_use, tokenizer_of
from flax_transformer.task.classification import Label
from flax_transformer.task.evaluator import Evaluator, Finished, Shown, compared, tested
from flax_transformer.task.opened import Context, Opened, VocabularyConfig, check_rows, split_batches
from flax_transformer.task.spec import Spec
from flax_transformer.task.text_classification import encoder_tokenizer


@frozen
class AnswerChoices:
    """Lay out a question a row: for each of its answers the text, and after it question and answer.

    A text that is too long loses its beginning, so that the last turns of a dialogue are read, and so do question and
    answer where both fill more than three quarters of a row.
    """

    vocabulary: VocabularyConfig = VocabularyConfig()
    """Of a new encoder; one that begins with a checkpoint has the checkpoint's."""
    rows: int = 16
    """Questions a batch."""
    length: int = 256
    """Tokens of text, question and answer."""

    def __post_init__(self):
        check_rows(self.rows, self.length, 8)

    @property
    def positions(self) -> int:
        """How many positions a model must have."""
        return self.length

    def open(self, data: ChoiceData, context: Context) -> Opened:
        """Read the questions, learn or load the tokenizer; held out are those of the test."""
        found = {split: data.read(split) for split in ("train", "validation", "test")}
        words = [text for each in found["train"] for text in (each.context, each.question, *each.answers)]
        tokenizer = encoder_tokenizer(self.vocabulary, context, words)
        most = max(len(each.answers) for questions in found.values() for each in questions)
        items = {}
        for split, questions in found.items():
            fitted = [fit_choices(tokenizer, each, self.length) for each in questions]
            items[split] = [_encoded(tokenizer, each, self.length) for each, _ in fitted]
            cut = sum(is_cut for _, is_cut in fitted)
            said = f", {cut:,} of them cut to {self.length} tokens" if cut else ""
            print(f"{split}: {len(questions):,} questions of at most {most} answers{said}", flush=True)
        collate = ChoiceRows(choices=most, length=self.length, pad=tokenizer.pad or 0)
        return Opened(
            tokenizer=tokenizer,
            spec=Spec(uses=("multiple-choice",), vocab=tokenizer.vocab_size),
            **split_batches(items, collate, self.rows, context),
            held=found["test"],
        )


def choice_example(tokenizer: HubTokenizer, asked: Choices, length: int | None) -> Example:
    """Encode a question: arrays of each answer's row, and the number of the right one; cut as `fit_choices` does.

    Raises:
      ValueError: rows without room for a text, a question and an answer.
    """
    return _encoded(tokenizer, fit_choices(tokenizer, asked, length)[0], length)


def fit_choices(tokenizer: HubTokenizer, asked: Choices, length: int | None) -> tuple[Choices, bool]:
    """Cut a question to rows of so many tokens; its answers have the question before them then, and it is empty.

    Returns:
      The question, and whether anything of it was left out.

    Raises:
      ValueError: as `choice_example`.
    """
    seconds = [f"{asked.question} {answer}".strip() for answer in asked.answers]
    if length is None:
        return Choices(asked.context, "", tuple(seconds), asked.label), False
    room = length - tokenizer.engine.num_special_tokens_to_add(True)
    if room < 2:
        raise ValueError(f"rows must have room for a text, a question and an answer, got {length} tokens")
    (context,) = tokenizer.encode([asked.context])
    most = room - min(len(context), max(room // 4, 1))
    ends = [_last(tokenizer, each, most) for each in seconds]
    context = _last(tokenizer, asked.context, room - max(map(len, tokenizer.encode(ends))))
    fitted = Choices(context, "", tuple(ends), asked.label)
    return fitted, fitted != Choices(asked.context, "", tuple(seconds), asked.label)


def _last(tokenizer: HubTokenizer, text: str, most: int) -> str:
    """Return the end of a text, of so many tokens at most."""
    (offsets,) = tokenizer.token_offsets([text])
    return text if len(offsets) <= most else text[offsets[-most][0] :]


def _encoded(tokenizer: HubTokenizer, asked: Choices, length: int | None) -> Example:
    """Encode a question as `fit_choices` returns it."""
    seconds = list(asked.answers)
    inputs = tokenizer(
        [asked.context] * len(seconds), seconds, max_length=length, truncate=length is not None, side="right"
    )
    ends = inputs["attention_mask"].sum(axis=1)
    fields = {"tokens": inputs["input_ids"], "types": inputs.get("token_type_ids")}
    rows = {name: [row[:end] for row, end in zip(each, ends, strict=True)] for name, each in fields.items()
            if each is not None}  # fmt: skip
    return {**rows, "labels": asked.label}


@frozen
class ChoiceRows:
    """Lay out questions: inputs are [B, A, T], `lengths` [B, A] with 0 for choices that a question has not."""

    choices: int
    """A."""
    length: int
    """T."""
    pad: int = 0

    def __call__(self, examples: Sequence[Mapping[str, Any] | None]) -> Arrays:
        """Lay out one batch."""
        flat: list[dict[str, Any] | None] = []
        for each in examples:
            names = [] if each is None else [name for name in each if name != "labels"]
            count = 0 if each is None else len(each["tokens"])
            flat += [{name: each[name][i] for name in names} if i < count else None for i in range(self.choices)]
        rows = Rows(length=self.length, pad=self.pad)(flat)["inputs"]
        inputs = {name: each.reshape(len(examples), self.choices, *each.shape[1:]) for name, each in rows.items()}
        labels = np.array([0 if each is None else each["labels"] for each in examples], np.int32)
        return {"inputs": inputs, "labels": labels, "weights": np.array([x is not None for x in examples], np.float32)}


@frozen
class ChosenAnswers(Evaluator):
    """Choose the answers of the test questions, and measure the accuracy."""

    takes: ClassVar[type] = list
    metric: ClassVar[str] = "accuracy"
    exported: ClassVar[bool] = True

    count: int = 5
    """Questions shown on the terminal."""

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        questions, pretrained = finished.opened.held, finished.pretrained
        metrics = tested(finished.objective, pretrained.model, finished.opened.test())
        length = next(iter(finished.opened.test()))["inputs"]["tokens"].shape[-1]
        samples = []
        for each in questions[:100]:
            best = choose_answer(pretrained, each.context, each.question, each.answers, length=length)[0]
            samples.append({
                "source": f"{each.context}\n{each.question}", "hypothesis": best.name,
                "target": each.answers[each.label],
            })  # fmt: skip
        lines = [
            line
            for each in samples[: self.count]
            for line in ("", *compared(each["source"].splitlines()[-1], each["hypothesis"], each["target"]))
        ]
        said = f"test accuracy {100 * metrics['accuracy']:.2f} % on {len(questions):,} questions"
        return Shown(metrics=metrics, samples=samples, lines=(*lines, "", said))


def choose_answer(
    pretrained: Pretrained,
    context: str,
    question: str,
    answers: Sequence[str],
    *,
    length: int | None = None,
    multiple: int = 1,
) -> list[Label]:
    """Choose among answers to a question about a text, or a dialogue of one turn a line.

    Args:
      length: tokens that rows are padded to, and cut to; those of the longest, within the positions, by default.
      multiple: without it rows are padded to a multiple of so many tokens, as every length is a program to compile.

    Returns:
      All answers with their probabilities, the most probable first.

    Raises:
      ValueError: a checkpoint of another kind, fewer than two answers, or an empty text or answer.
    """
    require_use(pretrained, "multiple-choice")
    if len(answers) < 2 or not context.strip() or not all(answer.strip() for answer in answers):
        raise ValueError(f"to choose takes a text and at least two answers, none empty, got {len(answers)} answers")
    tokenizer = tokenizer_of(pretrained, context)
    room = positions_of(pretrained.model.cfg) if length is None else length
    example = choice_example(tokenizer, Choices(context, question, tuple(answers), 0), room)
    width = -(-max(map(len, example["tokens"])) // multiple) * multiple if length is None else length
    width = width if room is None else min(width, room)
    batch = ChoiceRows(choices=len(answers), length=width, pad=tokenizer.pad or 0)([example])["inputs"]
    given = {"input_ids": batch["tokens"], "attention_mask": np.arange(width) < batch["lengths"][..., None]}
    given |= {"token_type_ids": batch["types"]} if "types" in batch else {}
    logits = pretrained(**{name: np.asarray(each, np.int32) for name, each in given.items()}).logits[0]
    probabilities = np.asarray(jax.nn.softmax(logits.astype(np.float32)))
    return [Label(answers[i], float(probabilities[i])) for i in np.argsort(-probabilities, kind="stable")]
