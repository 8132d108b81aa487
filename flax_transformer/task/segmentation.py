"""Segmentation: `segment`, the class or the object of every pixel, and maps of them as images.

Axes: H W height and width in pixels, E classes.
"""

import colorsys
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from flax_transformer.hub import Pretrained
from flax_transformer.hub.call import ModelOutput
from flax_transformer.hub.processor.image_source import read_images
from flax_transformer.hub.processor.segmentation import (
    class_scores,
    enlarged_masks,
    post_process_instance_segmentation,
    post_process_panoptic_segmentation,
    post_process_semantic_segmentation,
)
from flax_transformer.report.region import draw_regions
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


SUBTASKS = "semantic", "instance", "panoptic"
Subtask = Literal["semantic", "instance", "panoptic"]


def segment(
    pretrained: Pretrained, images: Any, threshold: float = THRESHOLD, subtask: Subtask | None = None
) -> list[Segmented]:
    """Tell the class, or the object, of every pixel of images.

    Args:
      pretrained: a model that can, with its image processor.
      images: one or a list: files, Pillow's, bytes or arrays.
      threshold: probability above which an object counts as found, from 0 to 1.
      subtask: of a model that tells objects apart: "panoptic", the surest object of each pixel; "instance", objects by
        the score of class and mask together; "semantic", the class of each pixel. None: "panoptic", or "semantic" of a
        model that tells classes alone.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a checkpoint of another kind or without an image processor, what is no image, another threshold, or a
        subtask that the model does not do.
    """
    require_use(pretrained, "image-segmentation", "images")
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold must be from 0 to 1, got {threshold}")
    if subtask is not None and subtask not in SUBTASKS:
        raise ValueError(f"subtask must be one of {', '.join(SUBTASKS)}, got {subtask!r}")
    image_processor_of(pretrained)
    several = [] if isinstance(images, list) and not images else read_images(images)
    return [_segment(pretrained, image, threshold, subtask) for image in several]


def _segment(pretrained: Pretrained, image: Any, threshold: float, subtask: Subtask | None) -> Segmented:
    output, sizes = pretrained(**image_processor_of(pretrained)(image)), [image_size(image)]
    names, queries = label_names(pretrained, pretrained.model.cfg.classes), _queries(output)
    if queries is None and subtask not in (None, "semantic"):
        raise ValueError(f"a {pretrained.config['architectures'][0]} tells classes of pixels alone, got {subtask!r}")
    if subtask == "instance" and output.pred_masks is not None:
        name = pretrained.config["architectures"][0]
        raise ValueError(f"a {name} tells the surest object of each pixel, which is 'panoptic', got 'instance'")
    if queries is None or subtask == "semantic":
        scores = output.logits if queries is None else class_scores(*queries)
        (numbers,) = post_process_semantic_segmentation(scores, sizes)
        found = {int(number): Region(names[number], int(number), 0.0) for number in np.unique(numbers)}
    else:
        if subtask == "instance":
            (objects,) = post_process_instance_segmentation(*queries, sizes, threshold=threshold)
            first = 1  # they are counted from 0 on
        else:
            (objects,) = post_process_panoptic_segmentation(*queries, sizes, threshold=threshold)
            first = 0
        numbers = (objects["segmentation"] + first).clip(0)
        found = {
            each["id"] + first: Region(names[each["label_id"]], each["id"] + first, 0.0, each["score"])
            for each in objects["segments_info"]
        }
    regions = (replace(each, fraction=float((numbers == number).mean())) for number, each in found.items())
    return Segmented(numbers, tuple(sorted(regions, key=lambda each: -each.fraction)))


def _queries(output: ModelOutput) -> tuple[Any, Any] | None:
    """Return what queries answer, logits of classes and of masks; None of a model without."""
    if output.masks_queries_logits is not None:
        return output.class_queries_logits, enlarged_masks(output.masks_queries_logits)
    return None if output.pred_masks is None else (output.logits, output.pred_masks)


def draw_segmented(image: Any, found: Segmented) -> Any:
    """Draw what `segment` found over one image; give a new image of Pillow's."""
    names = {
        each.number: each.label + ("" if each.probability is None else f" {each.probability:.2f}")
        for each in found.regions
    }
    return draw_regions(read_images(image)[0], found.numbers, names)


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
