"""Images of one split with what is known of them: a class each, or boxes; and where they lie.

Axes: B images, H W height and width in pixels, C channels, M boxes of an image.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int, UInt8

from flax_transformer.data.folder import NamedFiles
from flax_transformer.data.identity import digest
from flax_transformer.data.image.decode import decode_image, image_size


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
        """Say where an image comes from."""
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
        """Say where an image comes from."""
        return f"{self.origin}, number {index}"

    def size(self, index: int) -> tuple[int, int]:
        """Return the width and height, which all share."""
        return self.pixels.shape[2], self.pixels.shape[1]

    def take(self, indices: Int[np.ndarray, "_"]) -> "InMemoryImages":
        """Pick some."""
        return InMemoryImages(self.pixels[indices], self.origin)


@dataclass(frozen=True, eq=False)
class ImageSplit(Sequence[Any]):
    """Images and the numbers of their classes."""

    images: Images
    labels: Int[np.ndarray, " B"]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Decode one: `image`, Pillow's, `label`, and `name`, where it comes from."""
        return {"image": self.images[index], "label": int(self.labels[index]), "name": self.images.name(index)}

    @property
    def fingerprint(self) -> str:
        """Name which images and classes they are."""
        return digest(self.images.fingerprint, self.labels.astype(np.int64))

    def take(self, indices: Int[np.ndarray, "_"]) -> "ImageSplit":
        """Pick some."""
        return ImageSplit(self.images.take(indices), self.labels[indices])


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


@dataclass(frozen=True, eq=False)
class Scenes(Sequence[Any]):
    """Images, the objects in each, and what each image is called in its data set."""

    images: Images
    objects: Sequence[Objects]
    ids: Int[np.ndarray, " B"]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Decode one: `image`, Pillow's, `boxes` in pixels, `classes`, `number`, its own `size` (H, W), and `name`."""
        image, objects = self.images[index], self.objects[index]
        size = np.array([image.height, image.width], np.int32)
        seen = {"image": image, "boxes": objects.boxes, "classes": objects.classes}
        return {**seen, "number": index, "size": size, "name": self.images.name(index)}

    @property
    def fingerprint(self) -> str:
        """Name which images and objects they are."""
        parts = (part for each in self.objects for part in (str(len(each)), each.boxes, each.classes))
        return digest(self.images.fingerprint, self.ids, *parts)

    def take(self, indices: Int[np.ndarray, "_"]) -> "Scenes":
        """Pick some."""
        return Scenes(self.images.take(indices), [self.objects[index] for index in indices], self.ids[indices])


@dataclass(frozen=True)
class ImageSet:
    """Images to train on and held-out ones."""

    kind: Literal["classes", "boxes", "captions", "questions", "twins"]
    """What is known of each image."""
    splits: Mapping[str, Any]
    """`train`, `validation` and `test`: `ImageSplit`, `Scenes`, `Captioned`, `VisualQuestions` or `PairedImages`."""
    classes: tuple[str, ...] = ()
    channels: int = 3
    class_ids: tuple[int, ...] = ()
    """The numbers of the classes in the data set's own files, where they have any."""
