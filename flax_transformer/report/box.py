"""An image with the boxes of what was found in it, and how sure the model is.

Axes: M boxes.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#7f3c8d")
"""Of classes, in turn; most people tell them apart (Okabe and Ito 2008)."""
SMALLEST = 480
"""Pixels of the longer side at least; smaller images are drawn larger, pixel by pixel."""


def draw_boxes(
    image: Any,
    found: Mapping[str, Any],
    names: Sequence[str] | None = None,
    *,
    truth: Mapping[str, Any] | None = None,
) -> Any:
    """Draw what a detector found, the surest on top.

    Args:
      image: of Pillow, or bytes [H, W, 3].
      found: `boxes` [M, 4] in pixels, left, top, right, bottom; `labels` [M]; and `scores` [M].
      names: of the classes; their numbers without.
      truth: `boxes` that are there, drawn thin and white, with a dark edge.

    Returns:
      A new image of Pillow's.

    >>> nothing = {"boxes": np.zeros((0, 4)), "labels": np.zeros(0, int), "scores": np.zeros(0)}
    >>> draw_boxes(np.zeros((30, 60, 3), np.uint8), nothing).size
    (480, 240)
    """
    import PIL.Image
    import PIL.ImageDraw
    import PIL.ImageFont

    image = (PIL.Image.fromarray(image) if isinstance(image, np.ndarray) else image).convert("RGB")
    scale = max(1, math.ceil(SMALLEST / max(image.size)))
    drawn = image.resize((scale * image.width, scale * image.height), PIL.Image.Resampling.NEAREST)
    draw, side = PIL.ImageDraw.Draw(drawn), max(drawn.size)
    line, font = max(2, side // 240), PIL.ImageFont.load_default(max(12, side // 45))
    for box in np.asarray([] if truth is None else truth["boxes"], float).reshape(-1, 4):
        draw.rectangle(_corners(box, scale), outline="#000000", width=3)
        draw.rectangle(_corners(box, scale), outline="#ffffff", width=2)
    scores = np.asarray(found["scores"], float)
    for m in np.argsort(scores, kind="stable"):
        label, box = int(found["labels"][m]), _corners(np.asarray(found["boxes"][m], float), scale)
        colour = COLOURS[label % len(COLOURS)]
        text = f"{label if names is None else names[label]} {scores[m]:.2f}"
        draw.rectangle(box, outline=colour, width=line)
        draw_caption(draw, text, (box[0], box[1]), colour, font, drawn.size)
    return drawn


def _corners(box: np.ndarray, scale: int) -> tuple[float, float, float, float]:
    """Scale a box; a side that is right of the other is drawn where that is."""
    left, top, right, bottom = (scale * box).tolist()
    return min(left, right), min(top, bottom), max(left, right), max(top, bottom)


def draw_caption(
    draw: Any, text: str, corner: tuple[float, float], colour: str, font: Any, size: tuple[int, int]
) -> None:
    """Write above a corner of a box, or where there is no room within the image, as near as there is.

    Args:
      draw: of Pillow.
      colour: of what is behind the text.
      size: width and height of the image.
    """
    left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
    width, height = right - left + 6, bottom - top + 6
    x = min(max(corner[0], 0), max(size[0] - width, 0))
    y = min(max(corner[1] - height, 0), max(size[1] - height, 0))
    draw.rectangle((x, y, x + width, y + height), fill=colour)
    light = 0.299 * int(colour[1:3], 16) + 0.587 * int(colour[3:5], 16) + 0.114 * int(colour[5:7], 16) > 150
    draw.text((x + 3 - left, y + 3 - top), text, fill="#000000" if light else "#ffffff", font=font)
