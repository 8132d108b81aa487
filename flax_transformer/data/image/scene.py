"""Generated scenes: images of a few coloured shapes and their boxes, from which a detector can learn.

Axes: B images, H W height and width in pixels, M boxes of an image.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from flax_transformer.data.identity import digest
from flax_transformer.data.image.image_set import ImageSet, Objects, Scenes
from flax_transformer.data.image.open import ImageData
from flax_transformer.data.image.shape import SHAPES, draw_shape
from flax_transformer.data.split import SPLITS
from flax_transformer.frozen import frozen

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

    def open(self) -> ImageSet:
        """Lay out all scenes; they are drawn when they are asked for."""
        counts = (self.train, self.held_out, self.held_out)
        ends = np.cumsum(counts)
        splits = {
            split: _scenes(self, np.arange(end - count, end))
            for split, count, end in zip(SPLITS, counts, ends, strict=True)
        }
        return ImageSet("boxes", splits, SHAPES)

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
                if not any(_meet(box, other) for other in boxes):
                    boxes.append(box)
                    break
        classes = rng.integers(0, len(SHAPES), len(boxes)).astype(np.int32)
        return Objects(np.array(boxes, np.float32), classes)

    def ground(self, rng: np.random.Generator) -> Float[np.ndarray, "3"]:
        """Draw the colour behind the objects."""
        return rng.uniform(0, 255, 3)

    def paint(
        self, number: int, count: int, ground: Float[np.ndarray, "3"], rng: np.random.Generator
    ) -> Sequence[Float[np.ndarray, "3"]]:
        """Draw the colours of a scene's objects."""
        return [_unlike(ground, rng) for _ in range(count)]

    def draw(self, number: int) -> Any:
        """Draw a scene, an image of Pillow's: each object in a colour that stands out from the ground."""
        import PIL.Image

        rng, objects = np.random.default_rng((self.scene_seed, number, 1)), self.layout(number)
        shape, ground = (self.size, self.size, 3), self.ground(rng)
        pixels = np.broadcast_to(ground.astype(np.float32), shape).copy()
        colours = self.paint(number, len(objects), ground, rng)
        for box, label, colour in zip(
            objects.boxes.astype(int).tolist(), objects.classes.tolist(), colours, strict=True
        ):
            left, top, right, bottom = box
            part = pixels[top:bottom, left:right]
            part[draw_shape(SHAPES[label], bottom - top, right - left)] = colour
        pixels += np.float32(self.noise) * rng.standard_normal(shape, np.float32)
        return PIL.Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


@dataclass(frozen=True, eq=False)
class RenderedScenes:
    """Images of generated scenes, by their numbers."""

    scenes: Any
    """What draws them, `draw(number)`, all of one `size`."""
    numbers: Int[np.ndarray, " B"]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Any:
        return self.scenes.draw(int(self.numbers[index]))

    @property
    def fingerprint(self) -> str:
        """Name which images they are."""
        return digest(repr(self.scenes), self.numbers.astype(np.int64))

    def name(self, index: int) -> str:
        """Say which scene it is."""
        return f"scene {self.numbers[index]}"

    def size(self, index: int) -> tuple[int, int]:
        """Return the width and height, which all share."""
        return self.scenes.size, self.scenes.size

    def take(self, indices: Int[np.ndarray, "_"]) -> "Drawn":
        """Pick some."""
        return RenderedScenes(self.scenes, self.numbers[indices])


@frozen
class SceneData(ImageData):
    """Images with boxes: of a folder as COCO's json tells of them, or generated scenes where no folder is named."""

    root: str = ""
    """Folder of images and annotations; empty: generated scenes."""
    shapes: ShapeScenes = field(default_factory=ShapeScenes)
    """Which scenes are generated."""

    def found(self) -> ImageSet:
        """Open the folder, or lay out the scenes."""
        return super().found() if self.root else self.shapes.open()


def _scenes(scenes: ShapeScenes, numbers: Int[np.ndarray, " B"]) -> Scenes:
    return Scenes(
        RenderedScenes(scenes, numbers), [scenes.layout(int(number)) for number in numbers], numbers.astype(np.int64)
    )


def _meet(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _unlike(ground: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a colour that differs from another by half of the range in one channel at least."""
    while True:
        colour = rng.uniform(0, 255, 3)
        if np.abs(colour - ground).max() > 128:
            return colour
