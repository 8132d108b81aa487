"""An image with the regions that a segmenter told apart: a colour over each, an edge around it, and what it is.

Axes: H W height and width in pixels.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from flax_transformer.report.box import COLOURS, SMALLEST, draw_caption

COVER = 0.5
"""How much of a region's pixels is its colour."""


def draw_regions(image: Any, numbers: Int[np.ndarray, "H W"], names: Mapping[int, str]) -> Any:
    """Draw regions over an image; one that is not named is left as it is.

    Args:
      image: of Pillow, or bytes [H, W, 3].
      numbers: of each pixel, the number of its region.
      names: what is written on each region, in the order of their colours.

    Returns:
      A new image of Pillow's, small ones enlarged pixel by pixel.

    Raises:
      ValueError: numbers of another size than the image.

    >>> draw_regions(np.zeros((30, 60, 3), np.uint8), np.zeros((30, 60), int), {0: "sky"}).size
    (480, 240)
    """
    import PIL.Image
    import PIL.ImageDraw
    import PIL.ImageFont

    image = (PIL.Image.fromarray(image) if isinstance(image, np.ndarray) else image).convert("RGB")
    if numbers.shape != (image.height, image.width):
        raise ValueError(f"numbers must be of {image.height}×{image.width} pixels, as the image, got {numbers.shape}")
    scale = max(1, math.ceil(SMALLEST / max(image.size)))
    pixels, numbers = (np.repeat(np.repeat(np.asarray(x), scale, 0), scale, 1) for x in (image, numbers))
    pixels, colours = pixels.astype(np.float32), {n: COLOURS[i % len(COLOURS)] for i, n in enumerate(names)}
    for number, colour in colours.items():
        own = numbers == number
        pixels[own] = (1 - COVER) * pixels[own] + COVER * np.array(PIL.ImageColor.getrgb(colour), np.float32)
    pixels[_edges(numbers, max(1, max(numbers.shape) // 480))] = 255
    drawn = PIL.Image.fromarray(pixels.round().astype(np.uint8))
    draw, font = PIL.ImageDraw.Draw(drawn), PIL.ImageFont.load_default(max(12, max(drawn.size) // 45))
    for number, name in names.items():
        if (numbers == number).any():
            draw_caption(draw, name, _inside(numbers == number), colours[number], font, drawn.size)
    return drawn


def _edges(numbers: Int[np.ndarray, "H W"], width: int) -> Bool[np.ndarray, "H W"]:
    """Return the pixels that have another number so many pixels to the right or below."""
    edges = np.zeros(numbers.shape, bool)
    for step in range(1, width + 1):
        edges[:, :-step] |= numbers[:, :-step] != numbers[:, step:]
        edges[:-step] |= numbers[:-step] != numbers[step:]
    return edges


def _inside(own: Bool[np.ndarray, "H W"]) -> tuple[float, float]:
    """Return x and y in the middle of the longest run of a region's middle row."""
    rows = own.sum(1)
    y = int(np.searchsorted(np.cumsum(rows), rows.sum() / 2))
    ends = np.flatnonzero(np.diff(np.concatenate([[0], own[y].astype(np.int8), [0]])))
    begin, end = max(ends.reshape(-1, 2).tolist(), key=lambda run: run[1] - run[0])
    return (begin + end) / 2, float(y)
