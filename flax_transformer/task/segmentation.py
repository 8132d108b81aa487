"""Semantic segmentation: `segment`, the class of every pixel, and maps of them as images.

Axes: H W height and width in pixels, E classes.
"""

import colorsys
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from flax_transformer.hub import Pretrained
from flax_transformer.hub.processor.image_source import read_images
from flax_transformer.hub.processor.segmentation import post_process_semantic_segmentation
from flax_transformer.task.checkpoint import image_processor_of, require_use
from flax_transformer.task.classification import label_names
from flax_transformer.task.image_input import image_size


@dataclass(frozen=True)
class Region:
    """All pixels of a class in an image."""

    label: str
    number: int
    """Of the class."""
    fraction: float
    """Of the image's pixels."""


def segment(pretrained: Pretrained, images: Any) -> list[Int[np.ndarray, "H W"]]:
    """Return the class of every pixel of images.

    Args:
      pretrained: a model that tells the class of every pixel, with its image processor.
      images: one or a list: files, Pillow's, bytes or arrays.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a checkpoint of another kind or without an image processor, or what is no image.
    """
    require_use(pretrained, "image-segmentation", "images")
    processor = image_processor_of(pretrained)
    several = [] if isinstance(images, list) and not images else read_images(images)
    return [
        post_process_semantic_segmentation(pretrained(**processor(image)).logits, [image_size(image)])[0]
        for image in several
    ]


def regions(pretrained: Pretrained, classes: Int[np.ndarray, "H W"]) -> list[Region]:
    """List the classes of a map that `segment` made, the largest first."""
    numbers, counts = np.unique(classes, return_counts=True)
    names = label_names(pretrained, int(numbers.max()) + 1)
    return [
        Region(names[numbers[i]], int(numbers[i]), float(counts[i] / classes.size))
        for i in np.argsort(-counts, kind="stable")
    ]


def map_image(classes: Int[np.ndarray, "H W"]) -> Any:
    """Return a map of classes as an image of Pillow's whose values are their numbers.

    It is of 8 bits with a palette, so that it is seen in colours; of more than 256 classes of 16 bits, in grey.

    >>> np.asarray(map_image(np.array([[0, 3]]))).tolist()
    [[0, 3]]
    """
    import PIL.Image

    if classes.max(initial=0) > 255:
        return PIL.Image.fromarray(classes.astype(np.uint16))
    image = PIL.Image.fromarray(classes.astype(np.uint8))
    image.putpalette([part for number in range(256) for part in _colour(number)])
    return image


def _colour(number: int) -> tuple[int, ...]:
    """Return a colour of a class; hues of any first few are far from each other (by the golden ratio)."""
    value = (1.0, 0.7, 0.45)[number % 3]
    return tuple(round(255 * part) for part in colorsys.hsv_to_rgb(number * 0.618034 % 1, 0.65, value))
