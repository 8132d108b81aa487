"""Generated scenes with the class of every pixel: the kind of the shape that covers it, or the ground.

Axes: H W height and width in pixels.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flax_transformer.data.image.class_map import ClassMapData, class_maps
from flax_transformer.data.synthetic.shape import SHAPES, RenderedImages, ShapeScenes, fill_shapes
from flax_transformer.data.table import DataSet
from flax_transformer.frozen import frozen

GROUND = "ground"


@dataclass(frozen=True)
class SceneMaps:
    """What draws the maps of scenes."""

    scenes: ShapeScenes

    @property
    def size(self) -> int:
        """Pixels of both sides."""
        return self.scenes.size

    def draw(self, number: int) -> Any:
        """Draw the map of a scene, a grey image of Pillow's: 0 is the ground, then come the shapes in their order."""
        import PIL.Image

        numbers, objects = np.zeros((self.size, self.size), np.uint8), self.scenes.layout(number)
        fill_shapes(numbers, objects, objects.classes + 1)
        return PIL.Image.fromarray(numbers)


@frozen
class SceneMapData(ClassMapData):
    """Images with maps: of a folder in ADE20K's form, or generated scenes where no folder is named."""

    root: str = ""
    """Folder of images and annotations; empty: generated scenes."""
    shapes: ShapeScenes = field(default_factory=ShapeScenes)
    """Which scenes are generated."""

    def open(self) -> DataSet:
        """Open the folder, or lay out the scenes."""
        if self.root:
            return super().open()
        found, maps = self.shapes.open(), SceneMaps(self.shapes)
        splits = {
            split: class_maps(table["image"], RenderedImages(maps, table["image"].numbers))
            for split, table in found.splits.items()
        }
        return replace(found, splits=splits, classes=(GROUND, *SHAPES), kind="maps")
