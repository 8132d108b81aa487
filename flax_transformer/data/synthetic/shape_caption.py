"""Generated images with captions: a shape of some colour each, or two and where they are; on noisy ground.

Axes: B images, H W height and width in pixels.
"""

from dataclasses import field
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Int

from flax_transformer.data.image.text import CaptionData, captioned_images
from flax_transformer.data.split import SPLITS
from flax_transformer.data.synthetic.shape import ALL_SHAPES, SHAPES, RenderedImages, draw_shape
from flax_transformer.data.table import DataSet
from flax_transformer.frozen import frozen

COLOURS = {
    "red": (215, 40, 40), "green": (50, 160, 60), "blue": (50, 80, 210), "yellow": (235, 215, 50),
    "purple": (140, 50, 170), "cyan": (60, 200, 210),
}  # fmt: skip


ALL_COLOURS = {
    **COLOURS, "orange": (240, 140, 30), "pink": (245, 150, 190), "brown": (120, 70, 30), "black": (20, 20, 20),
    "white": (255, 255, 255), "navy": (20, 25, 90),
}  # fmt: skip


PATTERNS = ("{a} {} {}", "an image of {a} {} {}", "one {} {} on plain ground", "here is {a} {} {}")


@frozen
class CaptionedShapes:
    """Images of one shape of one colour, of which some combinations are the test's; the same ones of a seed."""

    train: int = 4_000
    """Images to train on."""
    held_out: int = 500
    """Images of validation, and as many of test."""
    colours: int = 12
    """How many colours there are, the first ones of twelve."""
    shapes: int = 8
    """How many shapes there are, the first ones of eight."""
    tested: int = 12
    """Combinations of a colour and a shape that test images have."""
    unseen: bool = True
    """Whether no other images have them."""
    size: int = 32
    """Pixels of both sides."""
    noise: float = 20.0
    """Standard deviation of what is added to every value, of 255."""
    spread: float = 12.0
    """Standard deviation of the values of a colour from image to image."""
    drawing_seed: int = 0
    """Which images these are."""

    def __post_init__(self) -> None:
        if min(self.train, self.held_out) < 1 or self.size < 8 or min(self.noise, self.spread, self.drawing_seed) < 0:
            raise ValueError(
                "shapes are drawn in at least 1 image a split, of at least 8 pixels, without negative noise, spread "
                f"or seed: got {self.train}, {self.held_out}, {self.size}, {self.noise}, {self.spread}, "
                f"{self.drawing_seed}"
            )
        if not (2 <= self.colours <= len(ALL_COLOURS) and 2 <= self.shapes <= len(ALL_SHAPES)):
            raise ValueError(
                f"there are from 2 to {len(ALL_COLOURS)} colours and from 2 to {len(ALL_SHAPES)} shapes, got "
                f"{self.colours} and {self.shapes}"
            )
        most = self.colours * self.shapes // 2
        if not 1 <= self.tested <= most:
            raise ValueError(f"tested must be from 1 to {most} combinations, got {self.tested}")

    @property
    def every(self) -> tuple[tuple[str, str], ...]:
        """Every colour with every shape."""
        return tuple(product(tuple(ALL_COLOURS)[: self.colours], ALL_SHAPES[: self.shapes]))

    def open(self) -> DataSet:
        """Lay out all images, which are drawn when they are asked for; the classes are one caption of each kind."""
        splits, begin = {}, 0
        for split, kinds in self.drawn.items():
            of, patterns = [self.every[kind] for kind in kinds], PATTERNS if split == "train" else PATTERNS[:1]
            captions = [tuple(_tell(pattern, kind) for pattern in patterns) for kind in of]
            splits[split] = captioned_images(RenderedImages(self, np.arange(begin, begin + len(of))), captions)
            begin += len(of)
        return DataSet(splits, tuple(_tell(PATTERNS[0], kind) for kind in self.every), "captions")

    @cached_property
    def drawn(self) -> dict[str, Int[np.ndarray, "_"]]:
        """The numbers of the combinations of all images, split by split."""
        counts = (self.train, self.held_out, self.held_out)
        draws = zip(SPLITS, counts, np.cumsum(counts), strict=True)
        return {
            split: np.random.default_rng((self.drawing_seed, end)).choice(self.kinds(split), count)
            for split, count, end in draws
        }

    @cached_property
    def _every_drawn(self) -> Int[np.ndarray, "_"]:
        return np.concatenate([*self.drawn.values()])

    def kinds(self, split: str) -> Int[np.ndarray, "_"]:
        """Return the numbers of the combinations that images of a split have.

        Those of the test are chosen so that each of their colours and shapes is in other combinations too.
        """
        steps = np.arange(self.tested)
        colours, shapes = steps % self.colours, (steps + steps // self.colours + self.drawing_seed) % self.shapes
        tested = colours * self.shapes + shapes
        if split == "test":
            return np.sort(tested)
        return np.array([kind for kind in range(len(self.every)) if not self.unseen or kind not in tested])

    def draw(self, number: int) -> Any:
        """Draw an image of Pillow's."""
        import PIL.Image

        rng = np.random.default_rng((self.drawing_seed, number, 1))
        colour, shape = self.every[self._every_drawn[number]]
        pixels = np.empty((self.size, self.size, 3))
        pixels[:] = rng.uniform(120, 220)
        high, wide = rng.integers(self.size // 3, self.size * 3 // 4 + 1, 2).tolist()
        top, left = rng.integers(self.size - high + 1), rng.integers(self.size - wide + 1)
        inside = draw_shape(shape, high, wide)
        pixels[top : top + high, left : left + wide][inside] = ALL_COLOURS[colour] + rng.normal(0, self.spread, 3)
        pixels += rng.normal(0, self.noise, pixels.shape)
        return PIL.Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _tell(pattern: str, kind: tuple[str, str]) -> str:
    return pattern.format(*kind, a="an" if kind[0][0] in "aeiou" else "a")


@frozen
class ShapeCaptions(CaptionData):
    """Images with captions: of a folder, or drawn shapes where no folder is named."""

    root: str = ""
    """Folder of images and files of captions; empty: shapes are drawn."""
    shapes: CaptionedShapes = field(default_factory=CaptionedShapes)
    """Which ones."""

    def open(self) -> DataSet:
        """Open the folder, or draw."""
        return super().open() if self.root else self.shapes.open()


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

    def open(self) -> DataSet:
        """Lay out all images, which are drawn when they are asked for."""
        counts = (self.train, self.held_out, self.held_out)
        splits = {}
        for split, count, end in zip(SPLITS, counts, np.cumsum(counts), strict=True):
            numbers = np.arange(end - count, end)
            splits[split] = captioned_images(
                RenderedImages(self, numbers), [(tell(self.layout(int(i))),) for i in numbers]
            )
        return DataSet(splits, kind="captions")

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
    """Return what is on an image: the upper shape first, and of two at one height the left one.

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
