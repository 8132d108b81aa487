"""Semantic segmentation: examples of images with maps of classes, and the mean intersection over union.

Axes: B images, H W height and width in pixels, E classes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from flax_transformer.data import shuffled
from flax_transformer.data.examples import Collate
from flax_transformer.data.image import DecodedRows, each_image_once
from flax_transformer.data.image.class_map import CropMap, FlipMap, MapRows, ResizeMap
from flax_transformer.data.table import DataSet
from flax_transformer.frozen import frozen
from flax_transformer.hub.processor.image import ImageProcessor
from flax_transformer.metric.mean_iou import class_iou, confusion, mean_iou
from flax_transformer.ops import bilinear, resample
from flax_transformer.parallel import multihost
from flax_transformer.report.sample import save_image
from flax_transformer.task.evaluator import Evaluator, Finished, Shown, tested
from flax_transformer.task.image_input import FILTERS, HeldImages, image_stream, named_classes, normalised, opened
from flax_transformer.task.opened import Context, Opened, check_rows
from flax_transformer.task.segmentation import map_image
from flax_transformer.task.spec import Spec
from flax_transformer.text_table import align
from flax_transformer.train.batch_layout import fill_rows


@frozen
class SegmentationImages:
    """Lay out images in a square, each with the class of every pixel."""

    rows: int = 16
    """Images a batch."""
    size: int = 512
    """Pixels of both sides."""
    flip: float = 0.5
    """Share of images that are mirrored in training."""
    crop: float = 1.0
    """Least share of the shorter side that is seen of an image in training, a square at random; 1: all of the image,
    in whichever shape."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """What is taken from values between 0 and 1, of each channel or one for all."""
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    """What the rest is divided by."""

    def __post_init__(self):
        check_rows(self.rows, self.size)
        FlipMap(share=self.flip)
        if not 0 < self.crop <= 1:
            raise ValueError(f"crop must be in (0, 1], got {self.crop}")
        normalised(self.mean, self.std, max(len(self.mean), len(self.std)))

    def open(self, data: Any, context: Context) -> Opened:
        """Open the images; held out are the test's `HeldImages`, with maps.

        Args:
          data: has `open()`, which gives a `DataSet` of images with maps, and perhaps `reduce`, as `ClassMapData` has.
        """
        found, reduce = opened(data, "maps"), getattr(data, "reduce", False)
        spec = Spec(uses=("image-segmentation",), classes=found.classes)
        collate = MapRows(classes=len(found.classes), reduce=reduce)
        return self._lay_out(
            found, context, spec, collate, self._processor("Segformer", found, do_reduce_labels=reduce)
        )

    def _lay_out(
        self, found: DataSet, context: Context, spec: Spec, collate: Collate, processor: ImageProcessor, *begin: Any,
    ) -> Opened:  # fmt: skip
        """Lay out batches of images and maps; `begin` transforms rows before both are changed."""
        normalise = normalised(self.mean, self.std, found.channels)
        fixed = (*begin, ResizeMap(size=self.size))
        cropped = (CropMap(least=self.crop),) if self.crop < 1 else ()
        train = (*begin, *cropped, FlipMap(share=self.flip), fixed[-1])
        once = partial(each_image_once, rows=context.held_rows(self.rows), collate=collate, normalise=normalise)
        source = DecodedRows(shuffled(found.splits["train"], *train, seed=context.seed), collate)
        return Opened(
            spec=replace(spec, image=(self.size, self.size, found.channels)),
            batches=image_stream(source, normalise, rows=self.rows, seed=context.seed),
            validation=partial(once, found.splits["validation"], *fixed),
            test=partial(once, found.splits["test"], *fixed),
            held=HeldImages(table=found.splits["test"], transforms=fixed, normalise=normalise),
            processor=processor,
            fields=named_classes(found.classes),
        )

    def _processor(self, kind: str, found: DataSet, **options: Any) -> ImageProcessor:
        """Make what prepares images for the finished model."""
        normalise = normalised(self.mean, self.std, found.channels)
        return ImageProcessor.of({
            "image_processor_type": f"{kind}ImageProcessor",
            "size": {"height": self.size, "width": self.size},
            "resample": FILTERS["bilinear"],
            "image_mean": list(normalise.mean),
            "image_std": list(normalise.std),
            **options,
        })  # fmt: skip


@frozen
class SegmentationEvaluator(Evaluator):
    """Measure the mean intersection over union while training and on the test images; keep some of their maps.

    It is that of pixels in the size in which the model sees images.
    """

    takes: ClassVar[type] = HeldImages
    metric: ClassVar[str] = "miou"
    validates: ClassVar[bool] = True

    count: int = 12
    """Images kept for the report, evenly spread: the image, the map that was found, and the true one."""

    def validate(self, model: Any, batches: Iterable[Any]) -> dict[str, float]:
        """Measure a model on validation images."""
        return mean_iou(sum(counts for counts, _ in _counted(model, batches)))

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        opened, names = finished.opened, finished.opened.spec.classes
        metrics = tested(finished.objective, finished.model, opened.test())
        parts = list(_counted(finished.model, opened.test()))
        counts = sum(each for each, _ in parts)
        found = mean_iou(counts)
        maps = np.concatenate([each for _, each in parts])
        shown = np.unique(np.linspace(0, len(maps) - 1, min(self.count, len(maps)), dtype=int)).tolist()
        rows = [(name, f"{100 * value:.2f}") for name, value in zip(names, class_iou(counts), strict=True)]
        headline = f"test mIoU {100 * found['miou']:.2f} %, pixel accuracy {100 * found['pixel_accuracy']:.2f} %"
        lines = ("", align([("class", "IoU %"), *rows], "lr"), f"{headline} on {len(maps):,} images")
        samples = [drawn_maps(finished, number, maps[number]) for number in shown]
        return Shown(metrics={**metrics, **found}, samples=samples, lines=lines)


def drawn_maps(finished: Finished, number: int, numbers: Int[np.ndarray, "H W"]) -> dict[str, Any]:
    """Make a sample of a held-out image: the image, the map that was found, and the true one."""
    held = finished.opened.held
    example = held.example(number)
    true = map_image(np.asarray(example["map"]).astype(np.int64)).convert("RGB")
    parts = (example["image"].convert("RGB"), map_image(numbers).convert("RGB"), true)
    drawn = np.concatenate([np.asarray(each) for each in parts], axis=1)
    return {
        "picture": save_image(finished.folder.root, f"{number}", drawn),
        "source": held.table["image"].name(number),
        "caption": "the image, what was found, what is there",
    }


def _counted(model: Any, batches: Iterable[Any]) -> Iterator[tuple[Int[np.ndarray, "E E"], Int[np.ndarray, "B H W"]]]:
    """Return what is counted in each batch, and the classes that were found."""
    for batch in batches:
        labels, weights = np.asarray(batch["labels"]), np.asarray(batch["weights"])
        found, classes = multihost.whole(_classes(model, fill_rows(batch["inputs"]), labels.shape[-2:]))
        found = np.asarray(found)[: len(labels)]
        real = weights.reshape(len(weights), -1).any(1)
        yield confusion(found, labels, int(classes.shape[0]), weights > 0), found[real]


@partial(jax.jit, static_argnums=2)
def _classes(model: Any, inputs: Any, size: tuple[int, int]) -> tuple[Array, Array]:
    scores = model.output(model.hidden_states(**inputs))
    return resample(scores, size, kernel=bilinear).argmax(-1), jnp.zeros(scores.shape[-1])
