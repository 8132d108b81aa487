"""Questions about stories, for models that choose the answer."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from flax_transformer.data.text import BucketPlan, bucket_boundaries
from flax_transformer.data.text.story import (
    FIRST,
    SPLITS,
    Stories,
    StoryQuestion,
    StoryStream,
    each_question_once,
    number_stories,
    split_words,
)
from flax_transformer.frozen import frozen
from flax_transformer.task.example.opened import Context, Opened
from flax_transformer.task.spec import Spec

ROWS = 8
"""Batches are a multiple of this many rows, so that up to 8 devices or processes see the same ones."""


@dataclass(frozen=True, eq=False)
class HeldStories:
    """Test questions in words, in the order of the batches' `index`, and the names of the tasks."""

    told: Sequence[StoryQuestion]
    tasks: tuple[str, ...]


@frozen
class StoryQuestions:
    """Lay out a question and the facts before it a row, in batches of few lengths; all tasks are learned together."""

    sentences: int = 2_048
    """Of a batch, padding among them."""
    buckets: int = 4
    """Lengths there are batches of; each is compiled once."""
    most: int = 70
    """Facts of a question at most, the latest."""

    def __post_init__(self):
        if self.buckets < 1 or self.most < 1 or self.sentences < ROWS * (self.most + 1):
            raise ValueError(
                f"a batch must have at least 1 bucket and room for {ROWS} questions with most={self.most} facts, got "
                f"buckets={self.buckets}, sentences={self.sentences}"
            )

    def open(self, data: Any, context: Context) -> Opened:
        """Read the tasks, number words and answers by those of training; held out are `HeldStories`.

        Args:
          data: has `read()`, which gives the questions of each task, by name, for every split.
        """
        if context.init:
            raise ValueError("a reader of stories begins with a new model, got a checkpoint as init")
        tasks = data.read()
        words, answers, width = _vocabulary(tasks)
        given = {"words": words, "answers": {name: i for i, name in enumerate(answers)}, "width": width}
        found = {}
        for split in SPLITS:
            try:
                found[split] = number_stories((task[split] for task in tasks.values()), **given, most=self.most)
            except ValueError as error:
                raise ValueError(f"{split}: {error}") from error
            if not len(found[split]):
                raise ValueError(f"{split} must have questions, there are none")
        train = found["train"]
        boundaries = bucket_boundaries(train.counts, self.buckets)
        plan = BucketPlan(
            train.counts, tokens=self.sentences, boundaries=boundaries, seed=context.seed,
            multiple=math.lcm(ROWS, context.multiple),
        )  # fmt: skip
        counts = ", ".join(f"{len(each):,} {split}" for split, each in found.items())
        print(
            f"{len(tasks)} tasks, questions: {counts}; {len(words):,} words, {len(answers)} answers\n"
            f"{plan.batches_per_epoch:,} batches an epoch, lengths {', '.join(map(str, boundaries))}, "
            f"{100 * plan.padding:.0f} % padding",
            flush=True,
        )
        held = {split: partial(self._once, found[split], boundaries) for split in SPLITS[1:]}
        return Opened(
            spec=Spec(uses=("classify",), vocab=FIRST + len(words), classes=answers, sizes={"words": width}),
            batches=StoryStream(
                plan, train, process_index=jax.process_index(), process_count=jax.process_count()
            ),
            **held,
            held=HeldStories([each for task in tasks.values() for each in task["test"]], tuple(tasks)),
        )  # fmt: skip

    def _once(self, stories: Stories, boundaries: tuple[int, ...]) -> Any:
        most = max(int(stories.counts.max()) + 1, boundaries[-1])
        return each_question_once(stories, (*boundaries[:-1], most), 2 * self.sentences)


def _vocabulary(
    tasks: Mapping[str, Mapping[str, Sequence[StoryQuestion]]],
) -> tuple[dict[str, int], tuple[str, ...], int]:
    """Number the words of training, name its answers, and count the words of its longest sentence."""
    questions = [each for task in tasks.values() for each in task["train"]]
    sentences = {sentence for each in questions for sentence in (*each.facts, each.question)}
    split = [split_words(sentence) for sentence in sentences]
    words = sorted({word for each in split for word in each})
    answers = tuple(sorted({each.answer for each in questions}))
    if len(answers) < 2:
        raise ValueError(f"training questions must have at least two different answers, got {', '.join(answers)}")
    return {word: FIRST + i for i, word in enumerate(words)}, answers, max(map(len, split))
