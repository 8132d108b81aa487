"""Questions about stories, for models that choose the answer."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from flax_transformer.data.bucket import BucketPlan, BucketStream, bucket_boundaries, eval_batches
from flax_transformer.data.text.story import (
    FIRST,
    SPLITS,
    Stories,
    StoryQuestion,
    number_stories,
    split_words,
)
from flax_transformer.frozen import frozen
from flax_transformer.metric.finite import check_finite
from flax_transformer.task.evaluator import Evaluator, Finished, Shown, tested
from flax_transformer.task.hops import find_facts
from flax_transformer.task.opened import Context, Opened
from flax_transformer.task.spec import Spec
from flax_transformer.text_table import align

ROWS = 8
"""Batches are a multiple of this many rows, so that up to 8 devices or processes see the same ones."""


@dataclass(frozen=True, eq=False)
class HeldStories:
    """Test questions in words, in the order of the batches' `index`, and the names of the tasks."""

    questions: Sequence[StoryQuestion]
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
    found: int = 0
    """Facts that are found by words in each hop, and the model reads no others; 0: it reads all. What is found is
    searched for, with the question, in the next hop."""
    hops: int = 2
    """How often is searched."""

    def __post_init__(self):
        if self.buckets < 1 or self.most < 1 or self.sentences < ROWS * (self.most + 1):
            raise ValueError(
                f"a batch must have at least 1 bucket and room for {ROWS} questions with most={self.most} facts, got "
                f"buckets={self.buckets}, sentences={self.sentences}"
            )
        if self.found < 0 or self.hops < 1:
            raise ValueError(f"found must be at least 0 and hops at least 1, got {self.found} and {self.hops}")

    def open(self, data: Any, context: Context) -> Opened:
        """Read the tasks, number words and answers by those of training; held out are `HeldStories`.

        Args:
          data: has `read()`, which gives the questions of each task, by name, for every split.
        """
        if context.init:
            raise ValueError("a reader of stories begins with a new model, got a checkpoint as init")
        tasks = self._found(data.read())
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
        boundaries = bucket_boundaries(train.lengths, self.buckets)
        plan = BucketPlan(
            train.lengths, tokens=self.sentences, boundaries=boundaries, seed=context.seed,
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
            spec=Spec(uses=("classification",), vocab=FIRST + len(words), classes=answers, sizes={"words": width}),
            batches=BucketStream(
                plan, train, process_index=jax.process_index(), process_count=jax.process_count()
            ),
            **held,
            held=HeldStories([each for task in tasks.values() for each in task["test"]], tuple(tasks)),
        )  # fmt: skip

    def _found(self, tasks: Mapping[str, Any]) -> Mapping[str, Any]:
        """Leave the facts that are found, and tell how many these are."""
        if not self.found:
            return tasks

        def found(each: StoryQuestion) -> StoryQuestion:
            return replace(each, facts=find_facts(each.facts, each.question, self.hops, self.found))

        cut = {
            name: {split: list(map(found, rows)) for split, rows in task.items()} for name, task in tasks.items()
        }  # fmt: skip
        before, after = (sum(len(each.facts) for task in all_of_them.values() for each in task["test"])
                         for all_of_them in (tasks, cut))  # fmt: skip
        print(f"of {before:,} facts of test questions {after:,} are found", flush=True)
        return cut

    def _once(self, stories: Stories, boundaries: tuple[int, ...]) -> Any:
        most = max(int(stories.lengths.max()) + 1, boundaries[-1])
        batches = eval_batches(stories, tokens=2 * self.sentences, boundaries=(*boundaries[:-1], most))
        return (batch for _, batch in batches)


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


FAILED = 5.0
"""A task whose error is above this many percent has failed (Weston et al. 2015)."""


@frozen
class TaskErrors(Evaluator):
    """Measure the error of each task, of batches that say which `task` a row is of; held out are `HeldStories`."""

    takes: ClassVar[type] = HeldStories
    metric: ClassVar[str] = "mean_error"
    better: ClassVar[Literal["lower", "higher"]] = "lower"
    validates: ClassVar[bool] = True

    count: int = 6
    """Wrong answers shown on the terminal."""

    def validate(self, model: Any, batches: Iterable[Any]) -> Mapping[str, float]:
        """Measure the mean error of the tasks on validation data, in percent."""
        errors = task_errors(*_answered(model, batches)[1:])
        return {"mean_error": float(np.mean(list(errors.values())))}

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        opened = finished.opened
        held, names = opened.held, opened.spec.classes
        metrics = dict(tested(finished.objective, finished.model, opened.test()))
        index, task, predicted, label = _answered(finished.model, opened.test())
        errors = task_errors(task, predicted, label)
        mean, failed = float(np.mean(list(errors.values()))), sum(each > FAILED for each in errors.values())
        rows = [(held.tasks[number], f"{error:.1f}", "failed" * (error > FAILED)) for number, error in errors.items()]
        samples = [
            {
                "kind": held.tasks[task[i]],
                "source": " ".join((*held.questions[index[i]].facts, held.questions[index[i]].question)),
                "target": names[label[i]],
                "hypothesis": names[predicted[i]],
            }
            for i in _some(task, predicted != label)
        ]
        wrong = [each for each in samples if each["target"] != each["hypothesis"]][: self.count]
        shown = [
            f"  {each['kind']}: {each['source'][-100:]} {each['hypothesis']}, not {each['target']}" for each in wrong
        ]
        last = f"mean error {mean:.2f} % of {len(errors)} tasks, {failed} failed (above {FAILED:g} %)"
        return Shown(
            metrics={
                **metrics, "mean_error": mean, "failed_tasks": float(failed),
                **{f"error_{held.tasks[number].split()[0]}": error for number, error in errors.items()},
            },
            samples=samples,
            lines=("", align([("task", "error %", ""), *rows], "lrl"), "", *shown, "", last),
        )  # fmt: skip


def task_errors(
    task: Int[np.ndarray, " B"], predicted: Int[np.ndarray, " B"], label: Int[np.ndarray, " B"]
) -> dict[int, float]:
    """Return the share of wrong answers of each task, in percent.

    >>> task_errors(np.array([0, 0, 2]), np.array([1, 2, 3]), np.array([1, 1, 3]))
    {0: 50.0, 2: 0.0}
    """
    return {int(each): 100 * float(np.mean((predicted != label)[task == each])) for each in np.unique(task)}


def _some(task: np.ndarray, wrong: np.ndarray, each: int = 3) -> list[int]:
    """Choose up to so many wrong and right answers of every task."""
    kinds = [np.flatnonzero((task == number) & kind) for number in np.unique(task) for kind in (wrong, ~wrong)]
    return [int(i) for kind in kinds for i in kind[:each]]


def _answered(model: Any, batches: Iterable[Any]) -> list[np.ndarray]:
    """Return number, task, answer told and right answer of every row."""
    found = []
    for batch in batches:
        there = batch["weights"] > 0
        logits = np.asarray(_logits(model, batch["inputs"]))
        check_finite("logits of answers", logits[there])
        found.append([each[there] for each in (batch["index"], batch["task"], logits.argmax(-1), batch["labels"])])
    return [np.concatenate(part) for part in zip(*found, strict=True)]


@jax.jit
def _logits(model: Any, inputs: Any) -> Float[Array, "B E"]:
    return model.output(model.hidden_states(**inputs))
