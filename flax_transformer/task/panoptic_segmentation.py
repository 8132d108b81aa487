"""Panoptic segmentation: examples of images with segments, also of instances or classes alone, and panoptic quality.

Axes: B images, Q queries, H W height and width in pixels, I J those of masks, M places for segments, E classes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.data.image.segment import ClassSegments, SegmentMap, SegmentRows
from flax_transformer.data.table import DataSet
from flax_transformer.frozen import frozen
from flax_transformer.hub.processor.segmentation import (
    class_scores,
    enlarged_masks,
    post_process_panoptic_segmentation,
    post_process_semantic_segmentation,
)
from flax_transformer.metric.mean_iou import class_iou, confusion, mean_iou
from flax_transformer.metric.panoptic_quality import (
    SegmentCounts,
    Segments,
    class_quality,
    count_segments,
    panoptic_quality,
)
from flax_transformer.parallel import MeshConfig, make_mesh, multihost
from flax_transformer.task.evaluator import Evaluator, Finished, Shown, tested
from flax_transformer.task.image_input import HeldImages, opened
from flax_transformer.task.opened import Context, Opened
from flax_transformer.task.semantic_segmentation import SegmentationImages, drawn_maps
from flax_transformer.task.spec import Spec
from flax_transformer.text_table import align
from flax_transformer.train.batch_layout import fill_rows


@frozen
class HeldSegments(HeldImages):
    """Held-out images with segments."""

    things: tuple[bool, ...] = ()
    """Of each class, whether its objects are counted one by one; () where that is not said: none are."""

    @property
    def stuff(self) -> tuple[int, ...]:
        """Classes of which an image has one segment at most."""
        classes = range(len(self.things))
        return tuple(number for number in classes if not self.things[number])


@frozen
class PanopticImages(SegmentationImages):
    """Lay out images in a square, each with its segments: objects, regions, or all pixels of a class.

    Whether a model learns panoptic, instance or semantic segmentation, the data say: segments of things and of stuff,
    of things alone, or maps of classes.
    """

    segments: int | None = None
    """Room for so many segments of an image; None: for as many as any has, of maps of classes for as many as there are
    classes."""

    def __post_init__(self):
        super().__post_init__()
        SegmentRows(segments=1 if self.segments is None else self.segments)

    def open(self, data: Any, context: Context) -> Opened:
        """Open the images; held out are the test's `HeldSegments`.

        Args:
          data: has `open()`, which gives a `DataSet` of images with segments or with maps, and perhaps `reduce`, as
            `ClassMapData` has.

        Raises:
          ValueError: an image with more segments than there is room for.
        """
        found, reduce = opened(data, "segments", "maps"), getattr(data, "reduce", False)
        begin = (*((ClassSegments(reduce=reduce),) if found.kind == "maps" else ()), SegmentMap())
        most, crowded = _most(found)
        room = most if self.segments is None else self.segments
        if found.kind == "maps":
            most = min(most, room)  # images have fewer classes than there are
        if most > room:
            raise ValueError(f"segments must be at least as many as an image has, got {room}, {most} in {crowded}")
        spec = Spec(uses=("image-segmentation",), classes=found.classes, objects=(most, crowded))
        processor = self._processor("Mask2Former", found, size_divisor=1, do_reduce_labels=reduce)
        made = self._lay_out(found, context, spec, SegmentRows(segments=room), processor, *begin)
        things = getattr(found, "things", ()) or (False,) * len(found.classes)
        return replace(made, held=HeldSegments(**vars(made.held), things=things))


def _most(found: DataSet) -> tuple[int, str]:
    """Find the image with the most segments; of maps of classes as many are taken to be in some as there are classes.

    Raises:
      ValueError: none in the images to train on.
    """
    if found.kind == "maps":
        return len(found.classes), "maps of so many classes (--segments says of fewer)"
    every = {}
    for split, table in found.splits.items():
        counts = [len(each["classes"]) for each in table["segments"].segments]
        number = int(np.argmax(counts))
        every[split] = counts[number], f"{table['image'].name(number)} ({split})"
    most, name = every["train"]
    if not most:
        raise ValueError(f"images to train on must have segments, got none in {name} and all others")
    return max(every.values())


@frozen
class PanopticEvaluator(Evaluator):
    """Measure the panoptic quality of what a model's queries answer while training and on the test images, and the mean
    intersection over union of the classes of pixels; keep some maps.

    Queries answer `logits` [B, Q, E + 1] and `masks` [B, Q, I, J], as a `Mask2Former`'s do, of which maps are made as
    `task.segmentation.segment` makes them, where segments of one class that is stuff are one. Both are measured on
    pixels in the size in which the model sees images.
    """

    takes: ClassVar[type] = HeldSegments
    metric: ClassVar[str] = "pq"
    validates: ClassVar[bool] = True

    threshold: float = 0.5
    """Probability of a class above which a query counts."""
    overlap: float = 0.8
    """Share of its mask that a segment must have for its own, or it is left out."""
    count: int = 12
    """Images kept for the report, evenly spread: the image, the map that was found, and the true one."""

    def __post_init__(self):
        for name in ("threshold", "overlap"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {value}")

    def watch(self, finished: Finished, step: int) -> dict[str, float]:
        """Measure a model on validation images."""
        return _Measured.of(self.found(finished, finished.opened.validation())).metrics(finished)

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        opened, names = finished.opened, finished.opened.spec.classes
        metrics = tested(finished.objective, finished.model, opened.test())
        each = list(self.found(finished, opened.test()))
        measured = _Measured.of(each)
        found, quality = measured.metrics(finished), class_quality(measured.segments)
        rows = [
            (name, *(f"{100 * value:.2f}" for value in values))
            for name, *values in zip(names, *quality.values(), class_iou(measured.pixels), strict=True)
        ]
        shown = np.unique(np.linspace(0, len(each) - 1, min(self.count, len(each)), dtype=int)).tolist()
        parts = [f"{kind} {100 * found[f'pq_{kind}']:.2f}" for kind in ("things", "stuff") if f"pq_{kind}" in found]
        headline = (
            f"test PQ {100 * found['pq']:.2f} % ({', '.join(parts)}), SQ {100 * found['sq']:.2f} %, RQ "
            f"{100 * found['rq']:.2f} %, mIoU {100 * found['miou']:.2f} % on {len(each):,} images"
        )
        lines = ("", align([("class", "PQ %", "SQ %", "RQ %", "IoU %"), *rows], "lrrrr"), headline)
        samples = [drawn_maps(finished, number, each[number].segments["numbers"].clip(0)) for number in shown]
        return Shown(metrics={**metrics, **found}, samples=samples, lines=lines)

    def found(self, finished: Finished, batches: Iterable[Any]) -> Iterator["_Image"]:
        """Return what is found in each image of batches, and what is there."""
        for batch in batches:
            answers = multihost.whole(_answers(finished.model, fill_rows(batch["inputs"])))
            logits, masks = np.asarray(answers.logits), np.asarray(answers.masks)
            for row in np.flatnonzero(batch["weights"]):
                labels = {name: values[row] for name, values in batch["labels"].items()}
                yield self._image(logits[[row]], masks[[row]], labels, finished.opened.held.stuff)

    def _image(
        self, logits: Float[np.ndarray, "1 Q E"], masks: Float[np.ndarray, "1 Q I J"], labels: dict[str, np.ndarray],
        fused: tuple[int, ...],
    ) -> "_Image":  # fmt: skip
        """Make maps of what is answered of one image, on one device of each process."""
        sizes = [labels["segments"].shape]
        with jax.set_mesh(make_mesh(MeshConfig(data=1), jax.local_devices()[:1])):
            large = enlarged_masks(masks)
            (objects,) = post_process_panoptic_segmentation(
                logits, large, sizes, threshold=self.threshold, overlap=self.overlap, fused=fused
            )
            (classes,) = post_process_semantic_segmentation(class_scores(logits, large), sizes)
        said = {each["id"]: each["label_id"] for each in objects["segments_info"]}
        found = {"numbers": objects["segmentation"], "ids": [*said], "classes": [*said.values()]}
        return _Image(found, classes, labels, logits.shape[-1] - 1)


class _Image(NamedTuple):
    """What is found in an image, and what is there."""

    segments: Segments
    classes: Int[np.ndarray, "H W"]
    labels: dict[str, np.ndarray]
    """Those of a row of `SegmentRows`."""
    number: int
    """E."""

    def quality(self) -> SegmentCounts:
        """Count segments."""
        there = np.flatnonzero((self.labels["weights"] > 0) | self.labels["crowd"])
        said = {name: self.labels[name][there] for name in ("classes", "crowd")}
        return count_segments(self.segments, {"numbers": self.labels["segments"], "ids": there, **said}, self.number)

    def pixels(self) -> Int[np.ndarray, "E E"]:
        """Count pixels of segments by their classes."""
        places = self.labels["segments"]
        counted: Bool[np.ndarray, "H W"] = places >= 0
        return confusion(self.classes, self.labels["classes"][places], self.number, counted)


class _Measured(NamedTuple):
    """What is counted in images."""

    segments: SegmentCounts
    pixels: Int[np.ndarray, "E E"]

    @classmethod
    def of(cls, images: Iterable[_Image]) -> "_Measured":
        """Count."""
        counts = [cls(each.quality(), each.pixels()) for each in images]
        segments, pixels = zip(*counts, strict=True)
        return cls(sum(segments[1:], segments[0]), sum(pixels))

    def metrics(self, finished: Finished) -> dict[str, float]:
        """Return panoptic quality, also of things and stuff alone, and the mean intersection over union."""
        return {**panoptic_quality(self.segments, finished.opened.held.things), **mean_iou(self.pixels)}


@jax.jit
def _answers(model: Any, inputs: dict[str, Array]) -> Any:
    return model(**inputs)
