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

    A text that is too long loses its beginning, so that the last turns of a dialogue are read.
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
        items = {
            split: [choice_example(tokenizer, each, self.length) for each in questions]
            for split, questions in found.items()
        }
        for split, questions in found.items():
            print(f"{split}: {len(questions):,} questions of at most {most} answers", flush=True)
        collate = ChoiceRows(choices=most, length=self.length, pad=tokenizer.pad or 0)
        return Opened(
            tokenizer=tokenizer,
            spec=Spec(uses=("multiple-choice",), vocab=tokenizer.vocab_size),
            **split_batches(items, collate, self.rows, context),
            held=found["test"],
        )


def choice_example(tokenizer: HubTokenizer, asked: Choices, length: int | None) -> Example:
    """Encode a question: arrays of each answer's row, and the number of the right one.

    Raises:
      ValueError: a question and answer that leave no room for the text.
    """
    seconds = [f"{asked.question} {answer}".strip() for answer in asked.answers]
    ids, (context,) = tokenizer.encode(seconds), tokenizer.encode([asked.context])
    added = tokenizer.engine.num_special_tokens_to_add(True)
    room = None if length is None else length - added - max(map(len, ids))
    if room is not None and room < 1:
        raise ValueError(f"question and answer must leave room for the text, got {length - room} of {length} tokens")
    text = asked.context
    if room is not None and len(context) > room:
        (offsets,) = tokenizer.token_offsets([text])
        text = text[offsets[-room][0] :]
    inputs = tokenizer([text] * len(seconds), seconds, max_length=length, truncate=length is not None, side="right")
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
    pretrained: Pretrained, context: str, question: str, answers: Sequence[str], *, length: int | None = None
) -> list[Label]:
    """Choose among answers to a question about a text, or a dialogue of one turn a line.

    Args:
      length: tokens that rows are padded to, and cut to; those of the longest, within the positions, by default.

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
    width = max(map(len, example["tokens"])) if length is None else length
    batch = ChoiceRows(choices=len(answers), length=width, pad=tokenizer.pad or 0)([example])["inputs"]
    given = {"input_ids": batch["tokens"], "attention_mask": np.arange(width) < batch["lengths"][..., None]}
    given |= {"token_type_ids": batch["types"]} if "types" in batch else {}
    logits = pretrained(**{name: np.asarray(each, np.int32) for name, each in given.items()}).logits[0]
    probabilities = np.asarray(jax.nn.softmax(logits.astype(np.float32)))
    return [Label(answers[i], float(probabilities[i])) for i in np.argsort(-probabilities, kind="stable")]
