"""Labels as they enter: the number of a class that there is, a box within its image, a token that is not the blank.

A compiled objective cannot refuse a value, so the readers do.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np


def check_classes(labels: Any, classes: Sequence[str], where: str) -> None:
    """Check that labels are numbers of classes.

    Args:
      labels: numbers, one an item.
      where: what the items are, for the message.

    Raises:
      ValueError: naming the first label that is not, and its item.

    >>> check_classes([0, 2], ("cat", "dog"), "training images")
    Traceback (most recent call last):
    ...
    ValueError: labels must be numbers of the 2 classes, 0 to 1, got 2 in item 1 of training images
    """
    numbers = np.asarray(labels)
    wrong = np.flatnonzero((numbers < 0) | (numbers >= len(classes)))
    if wrong.size:
        raise ValueError(
            f"labels must be numbers of the {len(classes):,} classes, 0 to {len(classes) - 1}, got "
            f"{numbers[wrong[0]]} in item {wrong[0]:,} of {where}"
        )


def check_boxes(boxes: Any, size: tuple[int, int], where: str) -> None:
    """Check that boxes lie in their image, but for a pixel.

    Args:
      boxes: left, top, right and bottom, in pixels.
      size: width and height of the image.
      where: its name, for the message.

    Raises:
      ValueError: naming the first box that does not, or whose corners are on the wrong side of each other.

    >>> check_boxes([[0.0, 0.0, 9.0, 400.0]], (10, 20), "a.png")
    Traceback (most recent call last):
    ...
    ValueError: boxes must be (left, top, right, bottom) within 10 × 20 pixels, got (0, 0, 9, 400) in a.png
    """
    boxes, (width, height) = np.asarray(boxes, np.float64).reshape(-1, 4), size
    inside = (boxes >= -1).all(-1) & (boxes <= np.array([width, height, width, height]) + 1).all(-1)
    wrong = np.flatnonzero(~inside | (boxes[:, 2:] < boxes[:, :2]).any(-1))
    if wrong.size:
        said = ", ".join(f"{side:g}" for side in boxes[wrong[0]])
        raise ValueError(
            f"boxes must be (left, top, right, bottom) within {width} × {height} pixels, got ({said}) in {where}"
        )


def check_tokens(tokens: Any, blank: int) -> None:
    """Check that no token of a text for CTC is the blank, or below 0.

    Raises:
      ValueError: naming the first that is.

    >>> check_tokens([3, 0], 0)
    Traceback (most recent call last):
    ...
    ValueError: tokens of a text must not be the blank, 0, nor negative, got 0 at position 1
    """
    tokens = np.asarray(tokens)
    wrong = np.flatnonzero((tokens < 0) | (tokens == blank))
    if wrong.size:
        where = f"{tokens[wrong[0]]} at position {wrong[0]}"
        raise ValueError(f"tokens of a text must not be the blank, {blank}, nor negative, got {where}")
