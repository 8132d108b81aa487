"""Segmentation: `segment`, the class or the object of every pixel, and maps of them as images.

Axes: H W height and width in pixels, E classes.
"""

import colorsys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Int

from flax_transformer.hub import Pretrained
from flax_transformer.hub.processor.image_source import read_images
from flax_transformer.hub.processor.segmentation import (
    post_process_panoptic_segmentation,
    post_process_semantic_segmentation,
)
from flax_transformer.task.checkpoint import image_processor_of, require_use
from flax_transformer.task.classification import label_names
from flax_transformer.task.detection import THRESHOLD
from flax_transformer.task.image_input import image_size


@dataclass(frozen=True)
class Region:
    """All pixels of a class in an image, or of an object."""

    label: str
    number: int
    """What the map has there: that of the class, or of the object from 1 on."""
    fraction: float
    """Of the image's pixels."""
    probability: float | None = None
    """How sure the model is of an object."""


@dataclass(frozen=True)
class Segmented:
    """What is in an image, and where."""

    numbers: Int[np.ndarray, "H W"]
    """Of each pixel, the class; or the object, 0 for none."""
    regions: tuple[Region, ...]
    """The largest first."""


def segment(pretrained: Pretrained, images: Any, threshold: float = THRESHOLD) -> list[Segmented]:
    """Tell the class, or the object, of every pixel of images.

    Args:
      pretrained: a model that can, with its image processor.
      images: one or a list: files, Pillow's, bytes or arrays.
      threshold: probability above which an object counts as found, from 0 to 1.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a checkpoint of another kind or without an image processor, what is no image, or another threshold.
    """
    require_use(pretrained, "image-segmentation", "images")
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold must be from 0 to 1, got {threshold}")
    image_processor_of(pretrained)
    several = [] if isinstance(images, list) and not images else read_images(images)
    return [_segment(pretrained, image, threshold) for image in several]


def _segment(pretrained: Pretrained, image: Any, threshold: float) -> Segmented:
    output, sizes = pretrained(**image_processor_of(pretrained)(image)), [image_size(image)]
    names = label_names(pretrained, pretrained.model.cfg.classes)
    if output.pred_masks is None:
        (numbers,) = post_process_semantic_segmentation(output.logits, sizes)
        found = {int(number): Region(names[number], int(number), 0.0) for number in np.unique(numbers)}
    else:
        (panoptic,) = post_process_panoptic_segmentation(output.logits, output.pred_masks, sizes, threshold=threshold)
        numbers = panoptic["segmentation"].clip(0)
        found = {
            each["id"]: Region(names[each["label_id"]], each["id"], 0.0, each["score"])
            for each in panoptic["segments_info"]
        }
    regions = (replace(each, fraction=float((numbers == number).mean())) for number, each in found.items())
    return Segmented(numbers, tuple(sorted(regions, key=lambda each: -each.fraction)))


def map_image(numbers: Int[np.ndarray, "H W"]) -> Any:
    """Return a map as an image of Pillow's whose values are the numbers.

    It is of 8 bits with a palette, so that it is seen in colours; with numbers above 255 of 16 bits, in grey.

    >>> np.asarray(map_image(np.array([[0, 3]]))).tolist()
    [[0, 3]]
    """
    import PIL.Image

    if numbers.max(initial=0) > 255:
        return PIL.Image.fromarray(numbers.astype(np.uint16))
    image = PIL.Image.fromarray(numbers.astype(np.uint8))
    image.putpalette([part for number in range(256) for part in _colour(number)])
    return image


def _colour(number: int) -> tuple[int, ...]:
    """Return a colour of a number; hues of any first few are far from each other (by the golden ratio)."""
    value = (1.0, 0.7, 0.45)[number % 3]
    return tuple(round(255 * part) for part in colorsys.hsv_to_rgb(number * 0.618034 % 1, 0.65, value))
