"""Image classification: examples of labelled images, and `classify_images`.

Axes: B images, E classes.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from flax_transformer.data import shuffled
from flax_transformer.data.examples import Transform
from flax_transformer.data.image import (
    DecodedRows,
    ImageRows,
    ImageStream,
    InMemoryImages,
    InMemoryRows,
    MixupCutmix,
    Normalise,
    each_image_once,
    load_images,
)
from flax_transformer.data.table import DataSet, Table
from flax_transformer.frozen import frozen
from flax_transformer.hub import Pretrained
from flax_transformer.task.checkpoint import File, require_use
from flax_transformer.task.classification import Label, ranked
from flax_transformer.task.image_input import (
    HeldImages,
    Sized,
    batches,
    image_stream,
    named_classes,
    normalised,
    opened,
    processor_of,
    shape_of,
)
from flax_transformer.task.opened import Context, Opened
from flax_transformer.task.spec import Spec


@frozen
class LabelledImages(Sized):
    """Lay out an image a row, resized so that its middle fills a square."""

    memory: int = 1024
    """MiB of images of a split at most that are decoded once and held in memory."""

    def open(self, data: Any, context: Context) -> Opened:
        """Open the images; held out are the test's `HeldImages`.

        Args:
          data: has `open()`, which gives a `DataSet` of labelled images.
        """
        found = opened(data, "classes")
        return self._settled(context, found.channels)._open(found, context)

    def _open(self, found: DataSet, context: Context) -> Opened:
        shape = shape_of(found, self.size)
        fixed = self._fixed()
        normalise = normalised(self.mean, self.std, found.channels)
        held = {split: self._held(found.splits[split], fixed) for split in ("validation", "test")}
        once = partial(each_image_once, rows=context.held_rows(self.rows), collate=ImageRows(), normalise=normalise)
        return Opened(
            spec=Spec(uses=("classification",), classes=found.classes, image=shape),
            batches=self._stream(found.splits["train"], shape, normalise, context.seed, classes=len(found.classes)),
            validation=partial(once, *held["validation"]),
            test=partial(once, *held["test"]),
            held=HeldImages(table=found.splits["test"], transforms=fixed, normalise=normalise),
            processor=processor_of(fixed, normalise),
            fields=named_classes(found.classes),
        )

    def _held(self, images: Table, fixed: tuple[Transform, ...]) -> tuple[Any, ...]:
        kept = load_images(images, *fixed, limit=self.memory << 20)
        return (images, *fixed) if kept is None else (kept,)

    def _stream(
        self,
        images: Table,
        shape: tuple[int, int, int],
        normalise: Normalise,
        seed: int,
        *changes: Any,
        classes: int,
    ) -> ImageStream:
        """Stream images to train on; `changes` changes batches after all else."""
        images, *fixed = self._held(images, () if self.augment.area else self._fixed())
        each = (*fixed, *self.augment.examples(shape[:2], self.resample))
        before, after = self.augment.batches(classes)
        if each or not isinstance(images["image"], InMemoryImages):
            source: Any = DecodedRows(shuffled(images, *each, seed=seed), ImageRows())
        else:
            source = InMemoryRows(images, seed)
        pairs = any(isinstance(change, MixupCutmix) for change in after)
        return image_stream(source, *before, normalise, *after, *changes, rows=self.rows, seed=seed, pairs=pairs)


def classify_images(pretrained: Pretrained, files: Sequence[File | Any]) -> list[list[Label]]:
    """Return what is on images, given as files or as images of Pillow's.

    Returns:
      For each all classes, the most probable first, as `classify` gives them.

    Raises:
      ValueError: a checkpoint of another kind or without an image processor, or a file that is no image.
    """
    require_use(pretrained, "classification", "images")
    rows = (pretrained(**inputs).logits for inputs in batches(pretrained, files))
    return [labels for logits in rows for labels in ranked(pretrained, np.asarray(logits.astype(np.float32)))]
