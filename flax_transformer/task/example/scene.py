"""Images with boxes, for detectors."""

from functools import partial
from typing import Any

import numpy as np

from flax_transformer.data import shuffled
from flax_transformer.data.image import (
    DecodedRows,
    Flip,
    ImageSet,
    Normalise,
    RandomApply,
    RandomCrop,
    RandomResize,
    Resize,
    SceneRows,
    each_image_once,
)
from flax_transformer.data.image.geometry import Resample
from flax_transformer.frozen import frozen
from flax_transformer.hub.processor.image import ImageProcessor
from flax_transformer.task.example.image import FILTERS, HeldImages, image_stream, named_classes, normalised, opened
from flax_transformer.task.example.opened import Context, Opened, check_rows
from flax_transformer.task.spec import Spec


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
          data: has `open()`, which gives an `ImageSet` of boxes.

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
            spec=Spec(uses=("detect",), classes=found.classes, image=(*frame, found.channels), objects=(most, crowded)),
            batches=image_stream(source, normalise, rows=self.rows, seed=context.seed),
            validation=partial(once, found.splits["validation"], *fixed),
            test=partial(once, found.splits["test"], *fixed),
            held=HeldImages(
                pictures=found.splits["test"], transforms=fixed, normalise=normalise, class_ids=found.class_ids
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

    def _frame(self, found: ImageSet, fixed: Resize) -> tuple[int, int]:
        """Return the height and width that all images fit in."""
        if self.crop:
            return self.size, self.size
        sizes = {each.images.size(i) for each in found.splits.values() for i in range(len(each))}
        heights, widths = zip(*(fixed.shape(*size) for size in sizes), strict=True)
        return max(heights), max(widths)


def _most(found: ImageSet) -> tuple[int, str]:
    """Find the image with the most objects.

    Raises:
      ValueError: none in the images to train on.
    """
    every = {}
    for split, scenes in found.splits.items():
        number = int(np.argmax([len(each) for each in scenes.objects]))
        every[split] = len(scenes.objects[number]), f"{scenes.images.name(number)} ({split})"
    most, name = every["train"]
    if not most:
        raise ValueError(f"images to train on must have objects, got none in {name} and all others")
    return max(every.values())
