"""Images of one split with what is known of them: a class each, or boxes; and where they lie.

Axes: B images, H W height and width in pixels, C channels, M boxes of an image.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int, UInt8

from flax_transformer.data.folder import NamedFiles
from flax_transformer.data.identity import digest
from flax_transformer.data.image.decode import decode_image, image_size
from flax_transformer.data.table import Gathered, Names, Numbers, Table


@runtime_checkable
class Images(Protocol):
    """Images by number, decoded when they are asked for."""

    @property
    def fingerprint(self) -> str:
        """Name which images they are."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any:
        """Decode an image to Pillow's, upright, RGB or grey."""
        ...

    def name(self, index: int) -> str:
        """Return where an image comes from."""
        ...

    def size(self, index: int) -> tuple[int, int]:
        """Return the width and height of an image without decoding it."""
        ...

    def take(self, indices: Int[np.ndarray, "_"]) -> "Images":
        """Pick some."""
        ...


@dataclass(frozen=True, eq=False)
class Files(NamedFiles):
    """Images that are files of a folder."""

    channels: int = 3
    sizes: Sequence[tuple[int, int] | None] | None = None
    """Width and height, where they are known from elsewhere, and must be so."""

    def __getitem__(self, index: int) -> Any:
        size = None if self.sizes is None else self.sizes[index]
        return decode_image(self.root / self.names[index], channels=self.channels, size=size)

    def size(self, index: int) -> tuple[int, int]:
        """Return the width and height of an image, from its header."""
        known = None if self.sizes is None else self.sizes[index]
        return known or image_size(self.root / self.names[index])

    def take(self, indices: Int[np.ndarray, "_"]) -> "Files":
        """Pick some."""
        sizes = None if self.sizes is None else [self.sizes[index] for index in indices]
        return replace(super().take(indices), sizes=sizes)


@dataclass(frozen=True, eq=False)
class InMemoryImages:
    """Images that are held in memory, all of one size."""

    pixels: UInt8[np.ndarray, "B H W C"]
    origin: str = "images in memory"

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> Any:
        import PIL.Image

        pixels = self.pixels[index]
        return PIL.Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)

    @cached_property
    def fingerprint(self) -> str:
        """Name which images they are: by all their values."""
        return digest(str(self.pixels.shape), self.pixels)

    def name(self, index: int) -> str:
        """Return where an image comes from."""
        return f"{self.origin}, number {index}"

    def size(self, index: int) -> tuple[int, int]:
        """Return the width and height, which all share."""
        return self.pixels.shape[2], self.pixels.shape[1]

    def take(self, indices: Int[np.ndarray, "_"]) -> "InMemoryImages":
        """Pick some."""
        return InMemoryImages(self.pixels[indices], self.origin)


def images_of(table: Table) -> Images:
    """Return the images of a table, each once."""
    image = table["image"]
    return image.source if isinstance(image, Gathered) else image


def labelled_images(images: Images, labels: Int[np.ndarray, " B"]) -> Table:
    """Put images, the numbers of their classes and their names in a table: `image`, `label`, `name`."""
    return Table({"image": images, "label": labels, "name": Names(images)})


@dataclass(frozen=True, eq=False)
class Objects:
    """What is to be seen in one image."""

    boxes: Float[np.ndarray, "M 4"]
    """Left, top, right and bottom, in pixels."""
    classes: Int[np.ndarray, " M"]
    areas: Float[np.ndarray, " M"] | None = None
    """Pixels that each covers, where that is known; None takes their boxes'."""
    crowds: "Objects | None" = None
    """Boxes around many, of which nothing is learned; a test asks for none of them, and forgives any."""

    @classmethod
    def from_annotations(cls, boxes: Any, classes: Any, areas: Any, crowd: Any) -> "Objects":
        """Make them of annotations of which some are of crowds; areas may be None."""

        def part(kept: np.ndarray) -> Objects:
            return cls(boxes[kept], classes[kept], None if areas is None else areas[kept])

        return replace(part(~crowd), crowds=part(crowd) if crowd.any() else None)

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def fingerprint(self) -> str:
        """Name where the objects are and what they are."""
        return digest(str(len(self)), self.boxes, self.classes)

    def truth(self) -> dict[str, np.ndarray]:
        """Return what a test goes by: `labels`, `boxes`, `areas`, and which are a `crowd`."""
        every = [self] if self.crowds is None else [self, self.crowds]
        sides = [each.boxes[:, 2:] - each.boxes[:, :2] for each in every]
        areas = [side.prod(-1) if each.areas is None else each.areas for each, side in zip(every, sides, strict=True)]
        return {
            "labels": np.concatenate([each.classes for each in every]),
            "boxes": np.concatenate([each.boxes for each in every]),
            "areas": np.concatenate(areas),
            "crowd": np.arange(sum(map(len, every))) >= len(self),
        }


def image_scenes(images: Images, objects: Sequence[Objects], ids: Int[np.ndarray, " B"]) -> Table:
    """Put images and the objects in each in a table.

    Its columns are `image`, `objects` and of these `boxes` in pixels and `classes`, the image's own `size` (H, W), its
    `number` in the table, `id`, what it is called in its data set, and `name`.
    """
    sizes = [images.size(index)[::-1] for index in range(len(objects))]
    return Table({
        "image": images, "objects": list(objects), "boxes": [each.boxes for each in objects],
        "classes": [each.classes for each in objects], "size": np.array(sizes, np.int32).reshape(-1, 2),
        "number": Numbers(len(objects)), "id": ids, "name": Names(images),
    })  # fmt: skip
