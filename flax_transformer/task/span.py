"""Training to answer by spans: windows of passages beside questions, and answers of the test questions.

Axes: B rows, T positions.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from flax_transformer.data.examples import Arrays, Example
from flax_transformer.data.text import Rows
from flax_transformer.data.text.annotated import Question
from flax_transformer.data.text.squad import SquadData
from flax_transformer.frozen import frozen
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.task.evaluator import Evaluator, Finished, Shown, compared, tested
from flax_transformer.task.opened import Context, Opened, VocabularyConfig, check_rows, split_batches
from flax_transformer.task.question_answering import AnswerConfig, answer, squad_scores
from flax_transformer.task.spec import Spec
from flax_transformer.task.text_classification import encoder_tokenizer


@frozen
class AnswerSpans:
    """Lay out a window of a passage beside its question a row, and where the answer is in it.

    A passage that is too long is several windows, which overlap; one that lacks the answer has its first position as
    both ends, as has a question without an answer (Devlin et al. 2019, section 4.3).
    """

    vocabulary: VocabularyConfig = VocabularyConfig()
    """Of a new encoder; one that begins with a checkpoint has the checkpoint's."""
    rows: int = 32
    """Windows a batch."""
    length: int = 384
    """Tokens of a window."""
    stride: int = 128
    """Tokens that neighbouring windows share."""
    question: int = 64
    """Most tokens of a question; of longer ones the rest is cut."""

    def __post_init__(self):
        check_rows(self.rows, self.length, 8)
        if not 0 <= self.stride < self.length - self.question - 3 or self.question < 1:
            raise ValueError(
                "a window must have room for the question and more than what it shares with its neighbour, got "
                f"length={self.length}, question={self.question}, stride={self.stride}"
            )

    @property
    def positions(self) -> int:
        """How many positions a model must have."""
        return self.length

    def open(self, data: SquadData, context: Context) -> Opened:
        """Read the questions, learn or load the tokenizer; held out are the questions of the test."""
        found = {split: data.read(split) for split in ("train", "validation", "test")}
        words = dict.fromkeys(text for each in found["train"] for text in (each.context, each.question))
        tokenizer = encoder_tokenizer(self.vocabulary, context, list(words))
        items = {split: self._windows(each, tokenizer) for split, each in found.items()}
        for split, each in items.items():
            empty = sum(not example["labels"].any() for example in each)
            print(
                f"{split}: {len(found[split]):,} questions in {len(each):,} windows, {empty:,} without an answer",
                flush=True,
            )
        collate = SpanRows(length=self.length, pad=tokenizer.pad or 0)
        return Opened(
            tokenizer=tokenizer,
            spec=Spec(uses=("question-answering",), vocab=tokenizer.vocab_size),
            **split_batches(items, collate, self.rows, context),
            held=found["test"],
        )

    def _windows(self, questions: Sequence[Question], tokenizer: HubTokenizer) -> list[Example]:
        return [example for each in questions for example in self._of(each, tokenizer)]

    def _of(self, asked: Question, tokenizer: HubTokenizer) -> list[Example]:
        """Cut the passage of one question into windows."""
        question = asked.question
        (offsets,) = tokenizer.token_offsets([question])
        if len(offsets) > self.question:
            question = question[: offsets[self.question - 1][1]]
        windows = tokenizer.encode_windows(question, asked.context, self.length, self.stride)
        found = []
        for i, inside in enumerate(windows.inside):
            real = windows.inputs["attention_mask"][i] > 0
            allowed = inside.copy()
            allowed[0] = True
            example = {"tokens": windows.inputs["input_ids"][i][real], "allowed": allowed[real]}
            if "token_type_ids" in windows.inputs:
                example["types"] = windows.inputs["token_type_ids"][i][real]
            found.append({**example, "labels": np.array(_ends(asked, windows.offsets[i], inside), np.int32)})
        return found


def _ends(asked: Question, offsets: np.ndarray, inside: np.ndarray) -> tuple[int, int]:
    """Find the tokens of the first answer that the window has whole; the first position twice where it has none."""
    places = np.flatnonzero(inside)
    begins, ends = offsets[places, 0], offsets[places, 1]
    for text, start in zip(asked.answers, asked.starts, strict=True):
        end = start + len(text)
        first = places[(begins <= start) & (start < ends)]
        last = places[(begins < end) & (end <= ends)]
        if len(first) and len(last):
            return int(first[0]), int(last[-1])
    return 0, 0


@frozen
class SpanRows:
    """Lay out windows as `Rows` does; `labels` are [B, 2], `allowed` [B, T] and `weights` [B]."""

    length: int
    pad: int = 0

    def __call__(self, examples: Sequence[Mapping[str, Any] | None]) -> Arrays:
        """Lay out one batch."""
        ends = np.stack([np.zeros(2, np.int32) if each is None else each["labels"] for each in examples])
        rest = [None if each is None else {k: v for k, v in each.items() if k != "labels"} for each in examples]
        batch = Rows(length=self.length, pad=self.pad)(rest)
        weights = np.array([each is not None for each in examples], np.float32)
        allowed = batch["allowed"].astype(bool)
        allowed[:, 0] = True
        return {**batch, "allowed": allowed, "labels": ends, "weights": weights}


@frozen
class SpanAnswers(Evaluator):
    """Answer the test questions, as `flax-transformer answer` does, and score them as SQuAD does."""

    takes: ClassVar[type] = list
    exported: ClassVar[bool] = True
    metric: ClassVar[str] = "f1"

    count: int = 5
    """Questions shown on the terminal."""
    most: int | None = None
    """Questions answered, evenly spread; all by default."""

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        questions, pretrained = finished.opened.held, finished.pretrained
        metrics = tested(finished.objective, pretrained.model, finished.opened.test())
        chosen = np.linspace(0, len(questions) - 1, min(self.most or len(questions), len(questions)), dtype=int)
        questions = [questions[place] for place in chosen]
        config = AnswerConfig(threshold=None if all(each.answers for each in questions) else 0.0)
        length = next(iter(finished.opened.test()))["inputs"]["tokens"].shape[1]
        found = [
            answer(pretrained, each.question, each.context, config, max_length=length, multiple=length)[:1]
            for each in questions
        ]
        texts = [each[0].text if each else "" for each in found]
        metrics |= squad_scores(texts, [each.answers for each in questions])
        samples = [
            {"source": f"{each.context}\n{each.question}", "hypothesis": text or "(no answer)",
             "target": " | ".join(each.answers) or "(no answer)"}
            for each, text in list(zip(questions, texts, strict=True))[:100]
        ]  # fmt: skip
        shown = [
            line
            for each in samples[: self.count]
            for line in ("", *compared(each["source"].splitlines()[-1], each["hypothesis"], each["target"]))
        ]
        said = f"test F1 {metrics['f1']:.2f}, exact match {metrics['exact_match']:.2f} on {len(questions):,} questions"
        return Shown(metrics=metrics, samples=samples, lines=(*shown, "", said))
