"""Images for models that generate them by taking noise away, conditioned on a class.

Axes: B images, H W height and width in pixels, C channels.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from flax_transformer.data.examples import Arrays
from flax_transformer.data.image import ImageRows, Normalise, each_image_once
from flax_transformer.data.table import DataSet
from flax_transformer.frozen import frozen
from flax_transformer.task.image_classification import LabelledImages
from flax_transformer.task.image_input import normalised
from flax_transformer.task.opened import Context, Opened


@frozen
class HeldForGeneration:
    """Images that generated ones are compared with, and how a model sees them."""

    images: Mapping[str, tuple[Any, ...]]
    """Those of each split, then the transforms that make them one size."""
    normalise: Normalise
    classes: tuple[str, ...]
    rows: int
    """Images of a batch."""

    def batches(self, split: str, most: int | None = None) -> Iterator[Arrays]:
        """Return batches of `images`, in bytes, and the numbers of their classes: each once, or so many at random."""
        images, *fixed = self.images[split]
        if most is not None and most < len(images):
            images = images.take(np.random.default_rng(0).permutation(len(images))[:most])
        return each_image_once(images, *fixed, rows=self.rows, collate=ImageRows())

    def pixels(self, split: str, most: int | None = None) -> UInt8[np.ndarray, "B H W C"]:
        """Return the images of a split, or so many of them at random, as bytes."""
        found = [batch["inputs"]["images"][batch["weights"] > 0] for batch in self.batches(split, most)]
        return np.concatenate(found)


@frozen
class ImagesOfClasses(LabelledImages):
    """Lay out an image and its class a row, as `LabelledImages` does, for a model that generates such images."""

    def _open(self, found: DataSet, context: Context) -> Opened:
        opened = super()._open(found, context)
        fixed = self._fixed()
        held = HeldForGeneration(
            images={split: self._held(images, fixed) for split, images in found.splits.items()},
            normalise=normalised(self.mean, self.std, found.channels),
            classes=tuple(found.classes),
            rows=context.held_rows(self.rows),
        )
        return replace(opened, spec=replace(opened.spec, uses=("image-generation",)), held=held)


def to_bytes(images: Float[np.ndarray, "B H W C"], normalise: Normalise) -> UInt8[np.ndarray, "B H W C"]:
    """Turn images as a model sees them back into bytes."""
    values = np.asarray(images, np.float32) * np.float32(normalise.std) + np.float32(normalise.mean)
    return np.round(np.clip(values, 0, 1) * 255).astype(np.uint8)
