"""Classification of anything: labels with their scores, accuracy on test data, the most frequent mistakes, samples.

Axes: B R rows, E classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Float

from flax_transformer.data.table import Table
from flax_transformer.frozen import frozen
from flax_transformer.hub import Pretrained
from flax_transformer.listing import listed
from flax_transformer.metric.finite import check_finite
from flax_transformer.report.sample import save_image, write_confusion
from flax_transformer.task.evaluator import Evaluator, Finished, Shown, tested
from flax_transformer.task.held_out import HeldOut, HeldSeen

KEPT = 100
"""Samples that a run keeps at most."""


Metrics = dict[str, float | int | str]


MOST = 5
"""Classes whose probabilities a sample keeps, the most probable."""


@frozen
class Labels(Evaluator):
    """Measure the accuracy on the test texts, a table of `text`, `label` and perhaps `pair`; keep the most wrong ones.

    Some others are kept too.
    """

    takes: ClassVar[type] = Table
    metric: ClassVar[str] = "accuracy"

    count: int = 6
    """Texts shown on the terminal, the first of the test."""

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        opened, test = finished.opened, finished.opened.held
        metrics = tested(finished.objective, finished.model, opened.test())
        probabilities, names = class_probabilities(finished), opened.spec.classes
        truth = np.asarray(test["label"])
        columns = [test[name] for name in ("text", "pair") if name in test.columns]
        texts = [" ⏐ ".join(row) for row in zip(*columns, strict=True)]
        write_confusion(finished.folder.root, names, truth.tolist(), probabilities.argmax(1).tolist())
        samples = [
            {"source": texts[i], **class_sample(names, int(truth[i]), probabilities[i])}
            for i in telling(truth, probabilities).tolist()
        ]
        wide = max(map(len, names))
        lines = [
            f"  {'✓' if predicted == names[truth[i]] else '✗'} {predicted:{wide}} {row.max():.2f}  {texts[i][:90]}"
            for i, row in enumerate(probabilities[: self.count])
            for predicted in (names[row.argmax()],)
        ]
        headline = f"test accuracy {100 * metrics['accuracy']:.2f} % on {len(probabilities):,} sentences"
        return Shown(metrics=metrics, samples=samples, lines=("", *lines, "", headline))


@frozen
class ShownLabels(Evaluator):
    """Measure the accuracy on held-out things, which say `what` they are and their `labels`; keep the most wrong and
    some others.

    Which class was taken for which is counted in the run's confusion.json. A subclass says what is shown of each.
    """

    takes: ClassVar[type] = HeldOut
    metric: ClassVar[str] = "accuracy"

    count: int = 5
    """Most frequent mistakes shown on the terminal."""

    def shown(self, root: Path, held: Any, index: int) -> dict[str, Any]:
        """Write what is seen of one into the run's folder; give what a sample has of it: `image`, `source`."""
        raise NotImplementedError

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        opened, held, root = finished.opened, finished.opened.held, finished.folder.root
        metrics = tested(finished.objective, finished.model, opened.test())
        probabilities, names = class_probabilities(finished), opened.spec.classes
        truth, predicted = np.asarray(held.labels), probabilities.argmax(1)
        write_confusion(root, names, truth.tolist(), predicted.tolist())
        samples = [
            {**self.shown(root, held, i), **class_sample(names, int(truth[i]), probabilities[i])}
            for i in telling(truth, probabilities).tolist()
        ]
        headline = f"test accuracy {100 * metrics['accuracy']:.2f} % on {len(probabilities):,} {held.what}"
        return Shown(
            metrics=metrics, samples=samples, lines=("", *self._mistakes(names, truth, predicted), "", headline)
        )

    def _mistakes(self, names: tuple[str, ...], truth: np.ndarray, predicted: np.ndarray) -> list[str]:
        """Return a table of the most frequent mistakes."""
        pairs, counts = np.unique(np.stack([truth, predicted])[:, truth != predicted], axis=1, return_counts=True)
        most = np.argsort(-counts, kind="stable")[: self.count]
        return [
            f"  {names[pairs[0, i]]} taken for {names[pairs[1, i]]}: {counts[i]:,} of {np.sum(truth == pairs[0, i]):,}"
            for i in most
        ]


@frozen
class ImageLabels(ShownLabels):
    """Classify the test images or videos: `HeldImages`, `HeldVideos`, `HeldSkeletons`."""

    takes: ClassVar[type] = HeldSeen

    def shown(self, root: Path, held: Any, index: int) -> dict[str, Any]:
        """Write the image as the model sees it."""
        return {
            "picture": save_image(root, str(index), held.seen(index)),
            "source": held.name(index),
            **held.facts(index),
        }


def telling(truth: np.ndarray, probabilities: Float[np.ndarray, "B E"]) -> np.ndarray:
    """Choose rows to keep: wrong ones, the surest first, at most half of them, then others spread evenly."""
    wrong = np.flatnonzero(probabilities.argmax(1) != truth)
    wrong = wrong[np.argsort(-probabilities[wrong].max(1), kind="stable")][: KEPT // 2]
    others = np.setdiff1d(np.arange(len(truth)), wrong)
    count = min(KEPT - len(wrong), len(others))
    return np.concatenate([wrong, others[np.arange(count) * len(others) // max(count, 1)]]).astype(np.int64)


def class_probabilities(finished: Finished) -> Float[np.ndarray, "B E"]:
    """Return each class's probability, of all test rows.

    Raises:
      ValueError: probabilities that are not finite.
    """
    batches = finished.opened.test()
    probabilities = [np.asarray(_batch_probabilities(finished.model, each))[each["weights"] > 0] for each in batches]
    check_finite("probabilities of classes", *probabilities)
    return np.concatenate(probabilities)


@jax.jit
def _batch_probabilities(model: Any, batch: Any) -> Float[jax.Array, "B E"]:
    return jax.nn.softmax(model.output(model.hidden_states(**batch["inputs"])))


def class_sample(names: Sequence[str], label: int | str, probabilities: Float[np.ndarray, "E"]) -> dict[str, Any]:
    """Return what a sample has of its classification: the class, the prediction, and the five highest probabilities.

    Args:
      names: of the E classes.
      label: number of the true class, or how it is to be called.
      probabilities: probability of each class.
    """
    best = np.argsort(-probabilities, kind="stable")[:MOST]
    return {
        "target": label if isinstance(label, str) else names[label],
        "hypothesis": names[best[0]],
        "score": float(probabilities[best[0]]),
        "scores": {names[j]: float(probabilities[j]) for j in best},
    }


@dataclass(frozen=True)
class Label:
    """A class and its probability; of a regression, the number it gives."""

    name: str
    probability: float


def label_names(pretrained: Pretrained, count: int) -> list[str]:
    """Return the names that config.json has for classes, and LABEL_0, LABEL_1 and so on for those it does not name."""
    named = pretrained.config.get("id2label")
    named = named if isinstance(named, dict) else {}
    return [str(named.get(str(i), f"LABEL_{i}")) for i in range(count)]


def ranked(pretrained: Pretrained, logits: Float[np.ndarray, "R E"]) -> list[list[Label]]:
    """Return all classes of each row, the most probable first."""
    probabilities = _probabilities(pretrained.config.get("problem_type"), logits)
    names = label_names(pretrained, probabilities.shape[-1])
    return [[Label(names[j], float(row[j])) for j in np.argsort(-row, kind="stable")] for row in probabilities]


def _probabilities(kind: str | None, logits: Float[np.ndarray, "R E"]) -> Float[np.ndarray, "R E"]:
    """Turn logits into what they say of each class: its share among all, its own probability, or a number."""
    if kind == "regression":
        return logits
    alone = kind == "multi_label_classification" or logits.shape[-1] == 1
    return np.asarray(jax.nn.sigmoid(logits) if alone else jax.nn.softmax(logits))


def class_numbers(pretrained: Pretrained, classes: Sequence[str], count: int) -> list[int]:
    """Find the checkpoint's number of each class: by its name, or as a number itself.

    Raises:
      ValueError: one that it does not know.
    """
    names = label_names(pretrained, count)
    known = {name.casefold(): number for number, name in enumerate(names)}
    known |= {f"label_{number}": number for number in range(count)}
    found = [
        known.get(name.casefold(), int(name) if name.isdecimal() and int(name) < count else -1) for name in classes
    ]
    if strange := [name for name, number in zip(classes, found, strict=True) if number < 0]:
        raise ValueError(
            f"the data have classes that the checkpoint does not know, {listed(strange)}; it knows {listed(names)}"
        )
    return found


def class_count(pretrained: Pretrained) -> int:
    """Return how many classes a checkpoint has, of which each row is one.

    Raises:
      ValueError: one of a regression, or of classes that a row may have several of.
    """
    names = pretrained.config.get("id2label")
    count = len(names) if names else pretrained.config.integer("num_labels", 2)
    problem = pretrained.config.get("problem_type") or ("regression" if count == 1 else None)
    if problem in ("regression", "multi_label_classification"):
        raise ValueError(f"one class of each row is measured, the checkpoint's problem_type is {problem}")
    return count


def accuracy(pretrained: Pretrained, predicted: Sequence[Sequence[Label]], truth: Sequence[int]) -> Metrics:
    """Compute the accuracy in per cent, and the mean of -log of the right class's probability."""
    if not truth:
        raise ValueError("there must be at least one row that can be read, got none")
    names = label_names(pretrained, len(predicted[0]))
    right = [labels[0].name == names[number] for labels, number in zip(predicted, truth, strict=True)]
    probabilities = [
        next(each.probability for each in labels if each.name == names[number])
        for labels, number in zip(predicted, truth, strict=True)
    ]
    loss = float(-np.log(np.maximum(probabilities, np.finfo(np.float32).tiny)).mean())
    return {"accuracy": 100 * sum(right) / len(right), "loss": loss, "rows": len(right)}
