"""Generated images of shapes: one to classify, or scenes of several with their boxes; on noisy ground.

Axes: B images, H W height and width in pixels, C channels, M boxes of an image.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped, UInt8

from flax_transformer.data.identity import digest
from flax_transformer.data.image.image_set import InMemoryImages, Objects, image_scenes, labelled_images
from flax_transformer.data.image.open import ImageData
from flax_transformer.data.split import SPLITS
from flax_transformer.data.table import DataSet, Table
from flax_transformer.frozen import frozen

ShapeMask = Callable[[Float[np.ndarray, "H 1"], Float[np.ndarray, "1 W"]], Bool[np.ndarray, "H W"]]


_SHAPES: dict[str, ShapeMask] = {
    "ellipse": lambda y, x: x**2 + y**2 <= 1,
    "rectangle": lambda y, x: (abs(x) <= 1) & (abs(y) <= 1),
    "triangle": lambda y, x: abs(x) <= (y + 1) / 2 + 1 / x.size,
    "cross": lambda y, x: (abs(x) <= 1 / 3) | (abs(y) <= 1 / 3),
    "diamond": lambda y, x: abs(x) + abs(y) <= 1 + 1 / x.size,
    "ring": lambda y, x: (x**2 + y**2 <= 1) & (x**2 + y**2 >= 0.36),
    "frame": lambda y, x: (abs(x) >= 0.6) | (abs(y) >= 0.6),
    "corner": lambda y, x: (x <= -1 / 3) | (y >= 1 / 3),
}


ALL_SHAPES = tuple(_SHAPES)


SHAPES = ALL_SHAPES[:4]
"""Those that most drawings are of."""


def draw_shape(name: str, height: int, width: int) -> Bool[np.ndarray, "H W"]:
    """Return which pixels of a box a shape covers; it touches all four sides.

    Args:
      name: one of `ALL_SHAPES`.

    >>> draw_shape("cross", 3, 3).astype(int).tolist()
    [[0, 1, 0], [1, 1, 1], [0, 1, 0]]
    """
    y, x = ((np.arange(count) + 0.5) / count * 2 - 1 for count in (height, width))
    return _SHAPES[name](y[:, None], x[None])


def fill_shapes(pixels: Shaped[np.ndarray, "H W ..."], objects: Objects, values: Iterable[Any]) -> None:
    """Set the pixels of every object's shape, in place, to a value of its own; later objects cover earlier ones."""
    for box, label, value in zip(objects.boxes.astype(int).tolist(), objects.classes.tolist(), values, strict=True):
        left, top, right, bottom = box
        pixels[top:bottom, left:right][draw_shape(SHAPES[label], bottom - top, right - left)] = value


@frozen
class DrawnShapes:
    """Images of one shape, whose kind is their class; always the same ones of a seed."""

    train: int = 4_000
    """Images to train on."""
    held_out: int = 500
    """Images of validation, and as many of test."""
    size: int = 32
    """Pixels of both sides."""
    noise: float = 40.0
    """Standard deviation of what is added to every value, of 255."""
    drawing_seed: int = 0
    """Which images these are."""

    def __post_init__(self) -> None:
        if min(self.train, self.held_out) < 1 or self.size < 8 or self.noise < 0 or self.drawing_seed < 0:
            raise ValueError(
                "shapes are drawn in at least 1 image a split, of at least 8 pixels, without negative noise or seed: "
                f"got {self.train}, {self.held_out}, {self.size}, {self.noise}, {self.drawing_seed}"
            )

    def open(self) -> DataSet:
        """Draw all images."""
        splits = {}
        for number, split in enumerate(SPLITS):
            rng = np.random.default_rng((self.drawing_seed, number))
            labels = rng.integers(len(SHAPES), size=self.train if split == "train" else self.held_out).astype(np.int32)
            pixels = np.stack([self.draw(SHAPES[label], rng) for label in labels])
            splits[split] = labelled_images(InMemoryImages(pixels, f"drawn {split} images"), labels)
        return DataSet(splits, SHAPES)

    def draw(self, shape: str, rng: np.random.Generator) -> UInt8[np.ndarray, "H W C"]:
        """Draw one image."""
        pixels = np.empty((self.size, self.size, 3))
        pixels[:], colour = rng.uniform(0, 255, (2, 3))
        high, wide = rng.integers(self.size // 4, self.size * 3 // 4 + 1, 2).tolist()
        top, left = rng.integers(self.size - high + 1), rng.integers(self.size - wide + 1)
        pixels[top : top + high, left : left + wide][draw_shape(shape, high, wide)] = colour
        return np.clip(pixels + rng.normal(0, self.noise, pixels.shape), 0, 255).astype(np.uint8)


@frozen
class LabelledImageData(ImageData):
    """Images with classes: of a folder in whichever form, or drawn shapes where no folder is named."""

    root: str = ""
    """Folder of images; empty: shapes are drawn."""
    shapes: DrawnShapes = field(default_factory=DrawnShapes)
    """Which ones."""

    def found(self) -> DataSet:
        """Open the folder, or draw."""
        return super().found() if self.root else self.shapes.open()


TRIES = 20
"""Places that are tried for an object, which must not cover another."""


@frozen
class ShapeScenes:
    """Scenes of shapes on noisy ground, each the same wherever it is drawn: of a seed and its number."""

    train: int = 20_000
    """Images to train on."""
    held_out: int = 500
    """Images of validation, and as many of test."""
    size: int = 96
    """Pixels of both sides."""
    objects: int = 5
    """Shapes in an image at most; there is at least one."""
    smallest: float = 0.15
    """Least side of a box, as a share of the image's."""
    largest: float = 0.45
    """Greatest side."""
    noise: float = 12.0
    """Standard deviation of what is added to every value, of 255."""
    scene_seed: int = 0
    """Which images these are."""

    def __post_init__(self) -> None:
        if min(self.train, self.held_out, self.objects) < 1 or self.noise < 0 or self.scene_seed < 0:
            raise ValueError(
                "scenes need at least 1 image to train on, 1 held out and 1 object, and no negative noise or seed: "
                f"got {self.train}, {self.held_out}, {self.objects}, {self.noise}, {self.scene_seed}"
            )
        if not 0 < self.smallest <= self.largest <= 1 or self.smallest * self.size < 6:
            raise ValueError(
                f"sides of boxes must be shares of the image, from 6 pixels on, got {self.smallest} to "
                f"{self.largest} of {self.size}"
            )

    def open(self) -> DataSet:
        """Lay out all scenes; they are drawn when they are asked for."""
        counts = (self.train, self.held_out, self.held_out)
        ends = np.cumsum(counts)
        splits = {
            split: _scenes(self, np.arange(end - count, end))
            for split, count, end in zip(SPLITS, counts, ends, strict=True)
        }
        return DataSet(splits, SHAPES, "boxes")

    def layout(self, number: int) -> Objects:
        """Place the objects of a scene: boxes of whole pixels that do not overlap."""
        rng = np.random.default_rng((self.scene_seed, number))
        low, high = round(self.smallest * self.size), round(self.largest * self.size)
        boxes: list[tuple[int, int, int, int]] = []
        for _ in range(rng.integers(1, self.objects + 1)):
            for _ in range(TRIES):
                width, height = rng.integers(low, high + 1, 2).tolist()
                left, top = (int(rng.integers(0, self.size - side + 1)) for side in (width, height))
                box = (left, top, left + width, top + height)
                if not any(_overlap(box, other) for other in boxes):
                    boxes.append(box)
                    break
        classes = rng.integers(0, len(SHAPES), len(boxes)).astype(np.int32)
        return Objects(np.array(boxes, np.float32), classes)

    def ground(self, rng: np.random.Generator) -> Float[np.ndarray, "3"]:
        """Draw the colour behind the objects."""
        return rng.uniform(0, 255, 3)

    def background(self, number: int, ground: Float[np.ndarray, "3"]) -> Float[np.ndarray, "H W 3"]:
        """Draw what is behind the objects, of one colour."""
        return np.broadcast_to(ground.astype(np.float32), (self.size, self.size, 3)).copy()

    def paint(
        self, number: int, count: int, ground: Float[np.ndarray, "3"], rng: np.random.Generator
    ) -> Sequence[Float[np.ndarray, "3"]]:
        """Draw the colours of a scene's objects."""
        return [_unlike(ground, rng) for _ in range(count)]

    def draw(self, number: int) -> Any:
        """Draw a scene, an image of Pillow's: each object in a colour that stands out from the ground."""
        import PIL.Image

        rng, objects = np.random.default_rng((self.scene_seed, number, 1)), self.layout(number)
        ground = self.ground(rng)
        pixels = self.background(number, ground)
        colours = self.paint(number, len(objects), ground, rng)
        fill_shapes(pixels, objects, colours)
        pixels += np.float32(self.noise) * rng.standard_normal(pixels.shape, np.float32)
        return PIL.Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


@dataclass(frozen=True, eq=False)
class RenderedImages:
    """Generated images by their numbers, drawn when they are asked for."""

    drawn_by: Any
    """What draws them, `draw(number)`, all of one `size`."""
    numbers: Int[np.ndarray, " B"]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Any:
        return self.drawn_by.draw(int(self.numbers[index]))

    @property
    def fingerprint(self) -> str:
        """Name which images they are."""
        return digest(repr(self.drawn_by), self.numbers.astype(np.int64))

    def name(self, index: int) -> str:
        """Return which image it is."""
        return f"drawn image {self.numbers[index]}"

    def size(self, index: int) -> tuple[int, int]:
        """Return the width and height, which all share."""
        return self.drawn_by.size, self.drawn_by.size

    def take(self, indices: Int[np.ndarray, "_"]) -> "RenderedImages":
        """Pick some."""
        return replace(self, numbers=self.numbers[indices])


@frozen
class SceneData(ImageData):
    """Images with boxes: of a folder as COCO's json tells of them, or generated scenes where no folder is named."""

    root: str = ""
    """Folder of images and annotations; empty: generated scenes."""
    shapes: ShapeScenes = field(default_factory=ShapeScenes)
    """Which scenes are generated."""

    def found(self) -> DataSet:
        """Open the folder, or lay out the scenes."""
        return super().found() if self.root else self.shapes.open()


def _scenes(scenes: ShapeScenes, numbers: Int[np.ndarray, " B"]) -> Table:
    return image_scenes(
        RenderedImages(scenes, numbers), [scenes.layout(int(number)) for number in numbers], numbers.astype(np.int64)
    )


def _overlap(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _unlike(ground: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a colour that differs from another by half of the range in one channel at least."""
    while True:
        colour = rng.uniform(0, 255, 3)
        if np.abs(colour - ground).max() > 128:
            return colour
