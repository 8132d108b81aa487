"""Find objects in images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flax_transformer.hub import Pretrained
from flax_transformer.hub.processor.detection import post_process_object_detection
from flax_transformer.hub.processor.image_source import read_images
from flax_transformer.report.box import draw_boxes
from flax_transformer.task.use.classify import label_names
from flax_transformer.task.use.require import image_processor_of, require_use

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
    require_use(pretrained, "detect", "images")
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
    (objects,) = post_process_object_detection(logits, boxes, [_shape(image)], threshold=threshold)
    names = _names(pretrained)
    return [
        Found(names[objects["labels"][i]], float(objects["scores"][i]), tuple(objects["boxes"][i].tolist()))
        for i in np.argsort(-objects["scores"], kind="stable")
    ]


def _names(pretrained: Pretrained) -> list[str]:
    return label_names(pretrained, pretrained.model.cfg.classes)


def _shape(image: Any) -> tuple[int, int]:
    """Return the height and width of an image, of Pillow or an array with channels first or last."""
    if hasattr(image, "getbands"):
        return image.height, image.width
    first = image.ndim == 3 and image.shape[0] in (1, 3, 4)
    return image.shape[1:] if first else image.shape[:2]
