"""Object detection: examples of images with boxes, COCO's average precision, `detect`."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import numpy as np

from flax_transformer.data import shuffled
from flax_transformer.data.image import (
    DecodedRows,
    Flip,
    Normalise,
    Objects,
    RandomApply,
    RandomCrop,
    RandomResize,
    Resize,
    SceneRows,
    each_image_once,
)
from flax_transformer.data.image.geometry import Resample
from flax_transformer.data.table import DataSet, Table
from flax_transformer.frozen import frozen
from flax_transformer.hub import Pretrained
from flax_transformer.hub.processor.detection import post_process_object_detection
from flax_transformer.hub.processor.image import ImageProcessor
from flax_transformer.hub.processor.image_source import read_images
from flax_transformer.metric.average_precision import average_precision
from flax_transformer.ops.boxes import to_corners
from flax_transformer.parallel import multihost
from flax_transformer.report.box import draw_boxes
from flax_transformer.report.sample import save_image
from flax_transformer.task.checkpoint import image_processor_of, require_use
from flax_transformer.task.classification import label_names
from flax_transformer.task.evaluator import Evaluator, Finished, Shown, tested
from flax_transformer.task.image_input import (
    FILTERS,
    HeldImages,
    image_size,
    image_stream,
    named_classes,
    normalised,
    opened,
)
from flax_transformer.task.opened import Context, Opened, check_rows
from flax_transformer.task.spec import Spec
from flax_transformer.train.batch_layout import fill_rows


@frozen
class DetectionImages:
    """Lay out an image a row, as large as fits a square, with the boxes of what is to be seen.

    A batch is as high and wide as the largest images are then; a square where images are cropped.
    """

    rows: int = 16
    """Images a batch."""
    size: int = 512
    """Pixels of both sides; an image's longer side has as many."""
    shorter: tuple[int, ...] = ()
    """Pixels of the shorter side in training, one of these; the longer one has at most `size`. As large as fits if
    empty."""
    boxes: int | None = None
    """Room for so many boxes of an image; None: for as many as there are in any."""
    flip: float = 0.5
    """Share of images that are mirrored."""
    upset: float = 0.0
    """Share of images that are turned upside down by mirroring."""
    crop: float = 0.0
    """Share of images that are cropped, to at least half of each side."""
    resample: Resample = "bilinear"
    """How pixels are made where sizes change."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """What is taken from values between 0 and 1, of each channel or one for all."""
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    """What the rest is divided by."""

    def __post_init__(self):
        check_rows(self.rows, self.size)
        Flip(share=self.flip)
        Flip(share=self.upset)
        RandomApply(transforms=(), share=self.crop)
        RandomResize(sizes=self.shorter or (self.size,), longest=self.size)
        SceneRows(size=self.size, boxes=1 if self.boxes is None else self.boxes)
        normalised(self.mean, self.std, max(len(self.mean), len(self.std)))

    def open(self, data: Any, context: Context) -> Opened:
        """Open the images; held out are the test's `HeldImages`.

        Args:
          data: has `open()`, which gives a `DataSet` of images with boxes.

        Raises:
          ValueError: an image with more boxes than there is room for.
        """
        found = opened(data, "boxes")
        most, crowded = _most(found)
        room = self._room(most, crowded)
        normalise = normalised(self.mean, self.std, found.channels)
        fixed = (Resize(size=self.size, longest=self.size, resample=self.resample),)
        frame = self._frame(found, fixed[0])
        collate = SceneRows(size=frame, boxes=room)
        sizes = self.shorter or (self.size,)
        train = (
            Flip(share=self.flip),
            Flip(share=self.upset, axis="height"),
            RandomApply(transforms=(RandomCrop(),), share=self.crop),
            RandomResize(sizes=sizes, longest=self.size, resample=self.resample),
        )
        once = partial(each_image_once, rows=context.held_rows(self.rows), collate=collate, normalise=normalise)
        source = DecodedRows(shuffled(found.splits["train"], *train, seed=context.seed), collate)
        return Opened(
            spec=Spec(
                uses=("object-detection",),
                classes=found.classes,
                image=(*frame, found.channels),
                objects=(most, crowded),
            ),
            batches=image_stream(source, normalise, rows=self.rows, seed=context.seed),
            validation=partial(once, found.splits["validation"], *fixed),
            test=partial(once, found.splits["test"], *fixed),
            held=HeldImages(
                table=found.splits["test"], transforms=fixed, normalise=normalise, class_ids=found.class_ids
            ),
            processor=self._processor(normalise),
            fields=named_classes(found.classes),
        )

    def _room(self, most: int, crowded: str) -> int:
        """Return how many boxes a row has room for."""
        if self.boxes is not None and most > self.boxes:
            raise ValueError(f"boxes must be at least as many as an image has, got {self.boxes}, {most} in {crowded}")
        return most if self.boxes is None else self.boxes

    def _processor(self, normalise: Normalise) -> ImageProcessor:
        """Make what prepares images for the finished model."""
        return ImageProcessor.of({
            "image_processor_type": "DetrImageProcessor",
            "size": {"shortest_edge": self.size, "longest_edge": self.size},
            "resample": FILTERS[self.resample],
            "image_mean": list(normalise.mean),
            "image_std": list(normalise.std),
        })  # fmt: skip

    def _frame(self, found: DataSet, fixed: Resize) -> tuple[int, int]:
        """Return the height and width that all images fit in."""
        if self.crop:
            return self.size, self.size
        sizes = {each["image"].size(i) for each in found.splits.values() for i in range(len(each))}
        heights, widths = zip(*(fixed.shape(*size) for size in sizes), strict=True)
        return max(heights), max(widths)


def _most(found: DataSet) -> tuple[int, str]:
    """Find the image with the most objects.

    Raises:
      ValueError: none in the images to train on.
    """
    every = {}
    for split, scenes in found.splits.items():
        number = int(np.argmax([len(each) for each in scenes["objects"]]))
        every[split] = len(scenes["objects"][number]), f"{scenes['name'][number]} ({split})"
    most, name = every["train"]
    if not most:
        raise ValueError(f"images to train on must have objects, got none in {name} and all others")
    return max(every.values())


LEAST = 0.05
"""Score from which on samples keep what was found."""


MOST = 50
"""Objects of a sample at most, the surest."""


@frozen
class DetectionEvaluator(Evaluator):
    """Measure the average precision while training and on the test images; keep what was found in some of these.

    Held out are `HeldImages` with `objects`.
    """

    takes: ClassVar[type] = HeldImages
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
        opened, scenes, names = finished.opened, finished.opened.held.table, finished.opened.spec.classes
        metrics = tested(finished.objective, finished.model, opened.test())
        found = [each for batch in opened.test() for each in _found(finished.model, batch)]
        precision = average_precision(found, [each.truth() for each in scenes["objects"]])
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


def _sample(finished: Finished, scenes: Table, number: int, found: Any, names: tuple[str, ...]) -> dict[str, Any]:
    objects: Objects = scenes["objects"][number]
    order = np.argsort(-found["scores"], kind="stable")
    kept = [int(i) for i in order if found["scores"][i] >= LEAST][:MOST]
    return {
        "picture": save_image(finished.folder.root, f"{number}", scenes["image"][number]),
        "source": scenes["name"][number],
        "size": list(scenes["image"].size(number)),
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


THRESHOLD = 0.5


@dataclass(frozen=True)
class Found:
    """An object: its class, how sure the model is, and where it is."""

    label: str
    probability: float
    box: tuple[float, float, float, float]
    """Left, top, right and bottom in pixels of the image."""


def detect(pretrained: Pretrained, images: Any, threshold: float = THRESHOLD) -> list[list[Found]]:
    """Find objects in images, the surest first.

    Args:
      pretrained: a model that finds objects, with its image processor.
      images: one or a list: files, Pillow's, bytes or arrays.
      threshold: probability above which an object counts as found, from 0 to 1.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a checkpoint of another kind or without an image processor, what is no image, or another threshold.
    """
    require_use(pretrained, "object-detection", "images")
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold must be from 0 to 1, got {threshold}")
    image_processor_of(pretrained)
    several = [] if isinstance(images, list) and not images else read_images(images)
    return [_detect(pretrained, image, threshold) for image in several]


def draw_found(pretrained: Pretrained, image: Any, found: Sequence[Found]) -> Any:
    """Draw what `detect` found in one image; give a new image of Pillow's."""
    names = _names(pretrained)
    objects = {
        "boxes": np.array([each.box for each in found]).reshape(-1, 4),
        "labels": np.array([names.index(each.label) for each in found], int),
        "scores": np.array([each.probability for each in found]),
    }
    return draw_boxes(read_images(image)[0], objects, names)


def _detect(pretrained: Pretrained, image: Any, threshold: float) -> list[Found]:
    output = pretrained(**image_processor_of(pretrained)(image))
    logits, boxes = (np.asarray(each, np.float32) for each in (output.logits, output.pred_boxes))
    (objects,) = post_process_object_detection(logits, boxes, [image_size(image)], threshold=threshold)
    names = _names(pretrained)
    return [
        Found(names[objects["labels"][i]], float(objects["scores"][i]), tuple(objects["boxes"][i].tolist()))
        for i in np.argsort(-objects["scores"], kind="stable")
    ]


def _names(pretrained: Pretrained) -> list[str]:
    return label_names(pretrained, pretrained.model.cfg.classes)
