"""Generated images to classify: a shape each, of any colour, place and size, on noisy ground.

Axes: B images, H W height and width in pixels, C channels.
"""

from dataclasses import field

import numpy as np
from jaxtyping import UInt8

from flax_transformer.data.image.image_set import ImageSet, InMemoryImages, Pictures
from flax_transformer.data.image.open import ImageData
from flax_transformer.data.image.shape import SHAPES, draw_shape
from flax_transformer.data.split import SPLITS
from flax_transformer.frozen import frozen


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

    def open(self) -> ImageSet:
        """Draw all images."""
        splits = {}
        for number, split in enumerate(SPLITS):
            rng = np.random.default_rng((self.drawing_seed, number))
            labels = rng.integers(len(SHAPES), size=self.train if split == "train" else self.held_out).astype(np.int32)
            pixels = np.stack([self.draw(SHAPES[label], rng) for label in labels])
            splits[split] = Pictures(InMemoryImages(pixels, f"drawn {split} images"), labels)
        return ImageSet("classes", splits, SHAPES)

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

    def found(self) -> ImageSet:
        """Open the folder, or draw."""
        return super().found() if self.root else self.shapes.open()
