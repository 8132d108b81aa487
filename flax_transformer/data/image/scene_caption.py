"""Generated images of one or two shapes, and the one sentence that says what is where.

Axes: B images.
"""

from dataclasses import field
from itertools import product
from typing import Any

import numpy as np

from flax_transformer.data.image.caption import Captioned
from flax_transformer.data.image.image_set import ImageSet
from flax_transformer.data.image.scene import RenderedScenes
from flax_transformer.data.image.shape import SHAPES, draw_shape
from flax_transformer.data.image.shape_caption import COLOURS, ShapeCaptions
from flax_transformer.data.split import SPLITS
from flax_transformer.frozen import frozen

KINDS = tuple(product(COLOURS, SHAPES))
"""Every colour with every shape."""
PlacedShape = tuple[int, tuple[str, str]]
"""A shape: its quarter of the image, row by row, its colour and what it is."""


@frozen
class CaptionedScenes:
    """Images of one shape or two, each in a quarter of its own, on noisy ground; the same ones of a seed."""

    train: int = 12_000
    """Images to train on."""
    held_out: int = 500
    """Images of validation, and as many of test."""
    size: int = 32
    """Pixels of both sides."""
    noise: float = 20.0
    """Standard deviation of what is added to every value, of 255."""
    drawing_seed: int = 0
    """Which images these are."""

    def __post_init__(self) -> None:
        if min(self.train, self.held_out) < 1 or self.size < 16 or min(self.noise, self.drawing_seed) < 0:
            raise ValueError(
                "scenes are drawn in at least 1 image a split, of at least 16 pixels, without negative noise or "
                f"seed: got {self.train}, {self.held_out}, {self.size}, {self.noise}, {self.drawing_seed}"
            )

    def open(self) -> ImageSet:
        """Lay out all images, which are drawn when they are asked for."""
        counts = (self.train, self.held_out, self.held_out)
        splits = {}
        for split, count, end in zip(SPLITS, counts, np.cumsum(counts), strict=True):
            numbers = np.arange(end - count, end)
            splits[split] = Captioned(RenderedScenes(self, numbers), [(tell(self.layout(int(i))),) for i in numbers])
        return ImageSet("captions", splits)

    def layout(self, number: int) -> list[PlacedShape]:
        """Return the shapes of an image, in the order in which they are told of."""
        rng = np.random.default_rng((self.drawing_seed, number))
        quarters = np.sort(rng.choice(4, rng.integers(1, 3), replace=False)).tolist()
        kinds = rng.choice(len(KINDS), len(quarters), replace=False)
        return [(quarter, KINDS[kind]) for quarter, kind in zip(quarters, kinds, strict=True)]

    def draw(self, number: int) -> Any:
        """Draw an image of Pillow's."""
        import PIL.Image

        rng, half = np.random.default_rng((self.drawing_seed, number, 1)), self.size // 2
        pixels = np.empty((self.size, self.size, 3))
        pixels[:] = rng.uniform(90, 250)
        for quarter, (colour, shape) in self.layout(number):
            high, wide = rng.integers(half // 2, half + 1, 2).tolist()
            sides = zip(divmod(quarter, 2), (high, wide), strict=True)
            top, left = (half * place + int(rng.integers(half - side + 1)) for place, side in sides)
            pixels[top : top + high, left : left + wide][draw_shape(shape, high, wide)] = COLOURS[colour]
        pixels += rng.normal(0, self.noise, pixels.shape)
        return PIL.Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def tell(placed: list[PlacedShape]) -> str:
    """Say what is on an image: the upper shape first, and of two at one height the left one.

    >>> tell([(0, ("red", "cross")), (1, ("blue", "ellipse"))])
    'a red cross left of a blue ellipse'
    """
    named = [f"a {colour} {shape}" for _, (colour, shape) in placed]
    rows = {quarter // 2 for quarter, _ in placed}
    return (" above " if len(rows) == 2 else " left of ").join(named)


@frozen
class SceneCaptions(ShapeCaptions):
    """Images with captions: of a folder, or drawn scenes where no folder is named."""

    shapes: CaptionedScenes = field(default_factory=CaptionedScenes)
    """Which ones."""
