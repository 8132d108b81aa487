"""Generated pairs of images: a sketch of a shape, and the same shape painted in the colour of its kind.

Axes: H W height and width in pixels, C channels.
"""

from dataclasses import field, replace

import numpy as np
from jaxtyping import Bool, Float, UInt8

from flax_transformer.data.image.image_folder import ImageFolderData, ImageSetsData
from flax_transformer.data.image.image_pair import ImagePairData, image_pairs
from flax_transformer.data.image.image_set import InMemoryImages
from flax_transformer.data.split import SPLITS
from flax_transformer.data.synthetic.shape import ALL_SHAPES, draw_shape
from flax_transformer.data.table import DataSet, Table
from flax_transformer.frozen import frozen


@frozen
class SketchedShapes:
    """Pairs of a black outline on white and the shape that fills it; always the same ones of a seed."""

    train: int = 2_000
    """Pairs to train on."""
    held_out: int = 200
    """Pairs of validation, and as many of test."""
    size: int = 32
    """Pixels of both sides."""
    drawing_seed: int = 0
    """Which pairs these are."""

    def __post_init__(self) -> None:
        if min(self.train, self.held_out) < 1 or self.size < 12 or self.drawing_seed < 0:
            raise ValueError(
                "shapes are sketched in at least 1 pair a split, of at least 12 pixels, without a negative seed: got "
                f"{self.train}, {self.held_out}, {self.size}, {self.drawing_seed}"
            )

    def open(self) -> DataSet:
        """Draw all pairs."""
        splits = {}
        for number, split in enumerate(SPLITS):
            rng = np.random.default_rng((self.drawing_seed, number))
            pairs = [self.draw(rng) for _ in range(self.train if split == "train" else self.held_out)]
            sides = (InMemoryImages(np.stack(side), f"drawn {split} images") for side in zip(*pairs, strict=True))
            splits[split] = image_pairs(*sides)
        return DataSet(splits, kind="pairs")

    def draw(self, rng: np.random.Generator) -> tuple[UInt8[np.ndarray, "H W C"], UInt8[np.ndarray, "H W C"]]:
        """Draw a sketch and what is painted of it: shape and ground have the colours of their kind."""
        kind = int(rng.integers(len(ALL_SHAPES)))
        high, wide = rng.integers(self.size // 3, self.size - 3, 2).tolist()
        top, left = (int(rng.integers(1, self.size - side)) for side in (high, wide))
        inside = np.zeros((self.size, self.size), bool)
        inside[top : top + high, left : left + wide] = draw_shape(ALL_SHAPES[kind], high, wide)
        shade = np.linspace(0.75, 1, self.size)[:, None, None]
        sketch = np.where(outline(inside)[..., None], 0, 255) * np.ones(3)
        painted = np.where(inside[..., None], COLOURS[kind] * shade, 255 - COLOURS[kind] / 4)
        return sketch.astype(np.uint8), painted.astype(np.uint8)


COLOURS: Float[np.ndarray, "8 3"] = np.array([
    [220, 50, 47], [38, 139, 210], [133, 153, 0], [181, 137, 0], [211, 54, 130], [42, 161, 152], [108, 113, 196],
    [203, 75, 22],
], np.float64)  # fmt: skip
"""Of the shapes of `ALL_SHAPES`."""


def outline(inside: Bool[np.ndarray, "H W"]) -> Bool[np.ndarray, "H W"]:
    """Return which pixels of a shape have a neighbour outside of it."""
    padded = np.pad(inside, 1)
    core = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return inside & ~core


@frozen
class ShapePairData(ImagePairData):
    """Pairs of images: of a folder of two folders, or sketched and painted shapes where no folder is named."""

    root: str = ""
    """Folder of two folders; empty: shapes are drawn."""
    shapes: SketchedShapes = field(default_factory=SketchedShapes)
    """Which ones."""

    def open(self) -> DataSet:
        """Open the folder, or draw."""
        return super().open() if self.root else self.shapes.open()


@frozen
class ShapeSetsData(ImageSetsData):
    """Two sets of images without pairs: of a folder of two folders, or sketches, and paintings of other shapes."""

    root: str = ""
    """Folder of two folders; empty: shapes are drawn."""
    shapes: SketchedShapes = field(default_factory=SketchedShapes)
    """Which ones; in training no sketch is of a shape that is painted."""

    def open(self) -> DataSet:
        """Open the folder, or draw."""
        if self.root:
            return super().open()
        found = self.shapes.open()
        half = len(found.splits["train"]) // 2
        train = found.splits["train"]
        sides = {"image": train["image"].take(np.arange(half)), "other": train["other"].take(np.arange(half) + half)}
        return replace(found, splits={**found.splits, "train": Table(sides)})


@frozen
class PaintedShapeData(ImageFolderData):
    """Images of which nothing is known: of a folder, or painted shapes where no folder is named."""

    root: str = ""
    """Folder of images; empty: shapes are drawn."""
    shapes: SketchedShapes = field(default_factory=SketchedShapes)
    """Which ones."""

    def open(self) -> DataSet:
        """Open the folder, or draw."""
        if self.root:
            return super().open()
        splits = self.shapes.open().splits
        return DataSet({split: Table({"image": table["other"]}) for split, table in splits.items()}, kind="images")
