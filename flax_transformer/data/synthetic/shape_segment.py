"""Generated scenes parted into segments: each shape is a thing, and what is above and below a horizon is stuff.

Axes: H W height and width in pixels, C channels, M segments.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from flax_transformer.data.image.panoptic import PanopticData, PanopticSet
from flax_transformer.data.synthetic.shape import SHAPES, RenderedImages, ShapeScenes, fill_shapes
from flax_transformer.data.table import Table
from flax_transformer.frozen import frozen

STUFF = ("sky", "floor")
SQUARE, CONTRAST = 4, 40.0
"""Pixels of a square of the floor, and by how much of 255 its colour differs from that of the next."""


@frozen
class HorizonScenes(ShapeScenes):
    """Scenes of shapes before two kinds of ground of about one colour: plain above, squares below a horizon."""

    def horizon(self, number: int) -> int:
        """Return the first row of a scene's floor, between a quarter and three quarters of the height."""
        rng = np.random.default_rng((self.scene_seed, number, 2))
        return int(rng.integers(self.size // 4, 3 * self.size // 4 + 1))

    def background(self, number: int, ground: Float[np.ndarray, "3"]) -> Float[np.ndarray, "H W 3"]:
        """Draw what is behind the objects."""
        y, x = np.indices((self.size, self.size)) // SQUARE
        squares = np.where((y + x) % 2 == 0, CONTRAST / 2, -CONTRAST / 2)
        squares[: self.horizon(number)] = 0
        return (ground + squares[..., None]).astype(np.float32)


@dataclass(frozen=True)
class SceneSegments:
    """What draws the segments of scenes, in the form of `SegmentFiles`: sky, floor, and the objects in their order."""

    scenes: HorizonScenes

    @property
    def size(self) -> int:
        """Pixels of both sides."""
        return self.scenes.size

    def tell(self, number: int) -> dict[str, Int[np.ndarray, " M"]]:
        """Return the `ids`, `classes` and `crowd` of a scene's segments; shapes are the first classes."""
        classes = np.append(len(SHAPES) + np.arange(len(STUFF)), self.scenes.layout(number).classes)
        return {"ids": 1 + np.arange(len(classes)), "classes": classes, "crowd": np.zeros(len(classes), bool)}

    def draw(self, number: int) -> dict[str, Any]:
        """Return these beside `numbers` [H, W], of each pixel the id of its segment."""
        numbers, objects = np.ones((self.size, self.size), np.int32), self.scenes.layout(number)
        numbers[self.scenes.horizon(number) :] = 2
        fill_shapes(numbers, objects, 1 + len(STUFF) + np.arange(len(objects)))
        return {"numbers": numbers, **self.tell(number)}


@dataclass(frozen=True, eq=False)
class RenderedSegments(RenderedImages):
    """Maps of segments of scenes, drawn when they are asked for."""

    @property
    def segments(self) -> Sequence[Any]:
        """Of each map the `ids`, `classes` and `crowd` of its segments."""
        return [self.drawn_by.tell(number) for number in self.numbers.tolist()]


@frozen
class SceneSegmentData(PanopticData):
    """Images with segments: of a folder in COCO's panoptic form, or generated scenes where no folder is named."""

    root: str = ""
    """Folder of images and annotations; empty: generated scenes."""
    shapes: HorizonScenes = field(default_factory=HorizonScenes)
    """Which scenes are generated."""

    def open(self) -> PanopticSet:
        """Open the folder, or lay out the scenes."""
        if self.root:
            return super().open()
        found, drawn_by = self.shapes.open(), SceneSegments(self.shapes)
        splits = {
            split: Table({"image": images, "segments": RenderedSegments(drawn_by, images.numbers)})
            for split, images in ((split, table["image"]) for split, table in found.splits.items())
        }
        things = (*(True for _ in SHAPES), *(False for _ in STUFF))
        return PanopticSet(splits, (*SHAPES, *STUFF), "segments", things=things)
