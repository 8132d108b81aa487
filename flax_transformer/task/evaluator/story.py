"""Questions about stories: the error of every task.

Axes: B rows, E answers.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from flax_transformer.frozen import frozen
from flax_transformer.task.evaluate import tested
from flax_transformer.task.evaluator.evaluator import Evaluator, Finished, Shown
from flax_transformer.task.finite import check_finite
from flax_transformer.text_table import align

FAILED = 5.0
"""A task whose error is above this many percent has failed (Weston et al. 2015)."""


@frozen
class TaskErrors(Evaluator):
    """Measure the error of each task, of batches that say which `task` a row is of; held out are `HeldStories`."""

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
                "source": " ".join((*held.told[index[i]].facts, held.told[index[i]].question)),
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
