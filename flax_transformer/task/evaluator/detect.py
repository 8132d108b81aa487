"""Detectors: how precisely they find the objects of the test images, and what they found in some.

Axes: B images, Q answers.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import jax
import numpy as np

from flax_transformer.data.image import Objects, Scenes
from flax_transformer.frozen import frozen
from flax_transformer.hub.processor.detection import post_process_object_detection
from flax_transformer.ops.boxes import to_corners
from flax_transformer.parallel import multihost
from flax_transformer.report.sample import save_image
from flax_transformer.task.evaluate import tested
from flax_transformer.task.evaluator.average_precision import average_precision
from flax_transformer.task.evaluator.evaluator import Evaluator, Finished, Shown
from flax_transformer.train.batch_layout import fill_rows

LEAST = 0.05
"""Score from which on samples keep what was found."""
MOST = 50
"""Objects of a sample at most, the surest."""


@frozen
class DetectionEvaluator(Evaluator):
    """Measure the average precision while training and on the test images; keep what was found in some of these.

    Held out are `HeldImages` of `Scenes`.
    """

    metric: ClassVar[str] = "ap"
    validates: ClassVar[bool] = True

    count: int = 24
    """Images kept for the report, evenly spread."""

    def validate(self, model: Any, batches: Iterable[Any]) -> dict[str, float]:
        """Measure the average precision on validation images, by the boxes alone, without crowds."""
        pairs = [pair for batch in batches for pair in zip(_found(model, batch), _there(batch), strict=True)]
        return average_precision(*map(list, zip(*pairs, strict=True)))

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        opened, scenes, names = finished.opened, finished.opened.held.pictures, finished.opened.spec.classes
        metrics = tested(finished.objective, finished.model, opened.test())
        found = [each for batch in opened.test() for each in _found(finished.model, batch)]
        precision = average_precision(found, [each.truth() for each in scenes.objects])
        shown = np.unique(np.linspace(0, len(scenes) - 1, min(self.count, len(scenes)), dtype=int)).tolist()
        samples = [_sample(finished, scenes, i, found[i], names) for i in shown]
        ap, ap50 = (100 * precision.get(name, math.nan) for name in ("ap", "ap50"))
        headline = f"test AP {ap:.2f} %, AP50 {ap50:.2f} % on {len(scenes):,} images"
        return Shown(metrics={**metrics, **precision}, samples=samples, lines=("", headline))


def _found(model: Any, batch: Any) -> Iterator[dict[str, np.ndarray]]:
    """Return what is found in each image of a batch, the class that each answer is surest of, in pixels."""
    answers = multihost.whole(_answers(model, fill_rows(batch["inputs"])))
    sizes = [tuple(size) for size in batch["labels"]["sizes"].tolist()]
    logits, boxes = (np.asarray(part)[: len(sizes)] for part in (answers.logits, answers.boxes))
    every = post_process_object_detection(logits, boxes, sizes, threshold=0.0)
    return (each for each, weight in zip(every, batch["weights"], strict=True) if weight > 0)


def _there(batch: Any) -> Iterator[dict[str, np.ndarray]]:
    """Return the objects in each image of a batch, in pixels."""
    labels = batch["labels"]
    corners = np.asarray(to_corners(labels["boxes"])) * labels["sizes"][:, None, [1, 0, 1, 0]]
    for boxes, classes, real, weight in zip(
        corners, labels["classes"], labels["weights"], batch["weights"], strict=True
    ):
        if weight > 0:
            yield {"labels": classes[real > 0], "boxes": boxes[real > 0]}


@jax.jit
def _answers(model: Any, inputs: Any) -> Any:
    return model.output(model.hidden_states(**inputs)[..., -1, :, :])


def _sample(finished: Finished, scenes: Scenes, number: int, found: Any, names: tuple[str, ...]) -> dict[str, Any]:
    objects: Objects = scenes.objects[number]
    order = np.argsort(-found["scores"], kind="stable")
    kept = [int(i) for i in order if found["scores"][i] >= LEAST][:MOST]
    return {
        "picture": save_image(finished.folder.root, f"{number}", scenes.images[number]),
        "source": scenes.images.name(number),
        "size": list(scenes.images.size(number)),
        "objects": [
            {"label": names[label], "box": _rounded(box)}
            for label, box in zip(objects.classes.tolist(), objects.boxes, strict=True)
        ],
        "found": [
            {"label": names[found["labels"][i]], "score": round(float(found["scores"][i]), 4),
             "box": _rounded(found["boxes"][i])}
            for i in kept
        ],
    }  # fmt: skip


def _rounded(box: np.ndarray) -> list[float]:
    return [round(float(side), 1) for side in box]
