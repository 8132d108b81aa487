"""Images with the class of every pixel: two folders, as ADE20K has them, and what changes an image and its map alike.

Axes: B images, H W height and width in pixels, C channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flax_transformer.data.examples import Arrays, Example
from flax_transformer.data.image.decode import is_image_name
from flax_transformer.data.image.geometry import check_share, check_size
from flax_transformer.data.image.image_set import Files, Images
from flax_transformer.data.image.text import held_out
from flax_transformer.data.split import split_of
from flax_transformer.data.table import DataSet, Table
from flax_transformer.frozen import frozen

NONE = 255
"""What a map has where a pixel has no class."""


@dataclass(frozen=True, eq=False)
class MapFiles(Files):
    """Maps that are PNG files, whose values are the numbers of classes: in grey, or of a palette."""

    def __getitem__(self, index: int) -> Any:
        import PIL.Image

        path = self.root / self.names[index]
        try:
            with PIL.Image.open(path) as image:
                if image.mode not in ("L", "P"):
                    raise ValueError(f"{path} must have one number of 8 bits a pixel, it is of mode {image.mode}")
                return PIL.Image.fromarray(np.asarray(image))
        except (OSError, SyntaxError) as error:
            raise ValueError(f"{path} must be a PNG of class numbers: {error}") from error


def class_maps(images: Images, maps: Images) -> Table:
    """Put images and the map of each in a table: `image`, `map`."""
    return Table({"image": images, "map": maps})


@frozen
class ClassMapData:
    """Images and maps of a folder in ADE20K's form: `images/training/a.jpg` and `annotations/training/a.png`.

    Folders below `images` and `annotations` are splits, by their usual names; there may be none, and what lacks a
    validation or a test split gives a share for it.
    """

    root: str
    """The folder of the data."""
    names: tuple[str, ...] = ()
    """What the classes are called, in the order of their numbers; empty: by the numbers that the maps have."""
    reduce: bool = False
    """Whether 0 in a map is no class, and 1 the first (ADE20K). 255 is none in any case."""
    holdout: float = 0.1
    """Share of the images for each of validation and test that the folder lacks."""
    split_seed: int = 0
    """Which images these are."""

    def open(self) -> DataSet:
        """Open the images without decoding them.

        Raises:
          FileNotFoundError: no such folders.
          ValueError: no images, an image without a map, or a map that is none.
        """
        root = Path(self.root).expanduser()
        sides = root / "images", root / "annotations"
        if missing := [side for side in sides if not side.is_dir()]:
            raise FileNotFoundError(
                f"{root} must have the folders images and annotations, {missing[0].name} is not there"
            )
        splits: dict[str, Table] = {}
        for folder in (sides[0], *sorted(path for path in sides[0].iterdir() if path.is_dir())):
            split = "train" if folder == sides[0] else split_of(folder.name)
            if split and (names := self._names(folder)):
                inside = folder.relative_to(sides[0])
                splits[split] = class_maps(
                    Files(root, [str("images" / inside / name) for name in names]),
                    MapFiles(
                        root, [str("annotations" / inside / name) for name in self._maps(sides[1] / inside, names)]
                    ),
                )
        if "train" not in splits:
            raise ValueError(f"{sides[0]} must have images to train on, got none")
        names = self.names or self._found(splits)
        return DataSet(held_out(splits, self.holdout, self.split_seed, root), names, kind="maps")

    def _names(self, folder: Path) -> list[str]:
        return sorted(path.name for path in folder.iterdir() if path.is_file() and is_image_name(path.name))

    def _maps(self, folder: Path, names: Sequence[str]) -> list[str]:
        found = [f"{Path(name).stem}.png" for name in names]
        for name, each in zip(names, found, strict=True):
            if not (folder / each).is_file():
                raise ValueError(f"the image {name} must have a map, {folder / each}, there is none")
        return found

    def _found(self, splits: dict[str, Table]) -> tuple[str, ...]:
        """Name the classes by the numbers up to the largest."""
        largest = 0
        for table in splits.values():
            for number in range(len(table["map"])):
                values = np.unique(np.asarray(table["map"][number]))
                largest = max(largest, *values[values != NONE].tolist(), 0)
        return tuple(str(number) for number in range(int(self.reduce), largest + 1))


@frozen
class ResizeMap:
    """Make an image and its map of one size: pixels by Pillow's bilinear filter, classes those of the nearest."""

    size: int | tuple[int, int]
    """Of both sides, or height and width."""

    def __post_init__(self) -> None:
        check_size("size", self.size)

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Resize both."""
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        filters = {"image": 2, "map": 0}
        return {**example, **{name: example[name].resize((width, height), f) for name, f in filters.items()}}


@frozen
class FlipMap:
    """Mirror a share of images left to right, with their maps."""

    share: float = 0.5

    def __post_init__(self) -> None:
        check_share("share", self.share)

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Mirror both, or neither."""
        if rng.random() >= self.share:
            return example
        return {**example, **{name: example[name].transpose(0) for name in ("image", "map")}}


@frozen
class CropMap:
    """Take a square at random out of an image and its map, a share of the shorter side."""

    least: float = 0.5
    """The least share."""

    def __post_init__(self) -> None:
        check_share("least", self.least)

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Crop both alike."""
        width, height = example["image"].size
        side = max(1, round(min(width, height) * rng.uniform(self.least, 1)))
        left, top = int(rng.integers(width - side + 1)), int(rng.integers(height - side + 1))
        box = (left, top, left + side, top + side)
        return {**example, **{name: example[name].crop(box) for name in ("image", "map")}}


@frozen
class MapRows:
    """Lay out images of one size [B, H, W, C] in bytes, with the classes of their pixels, and which have one."""

    classes: int
    """Classes that there are."""
    reduce: bool = False
    """Whether 0 in a map is no class, and 1 the first."""

    def __call__(self, examples: Sequence[Example | None]) -> Arrays:
        """Lay out one batch; a row without an example is black and has weights of 0.

        Raises:
          ValueError: an image and a map of several sizes, or a number of no class.
        """
        first = np.asarray(next(each for each in examples if each is not None)["image"])
        images = np.zeros((len(examples), *first.shape), np.uint8)
        maps = np.full(images.shape[:3], NONE, np.int32)
        for row, each in enumerate(examples):
            if each is None:
                continue
            pixels, numbers = np.asarray(each["image"]), np.asarray(each["map"])
            if pixels.shape != first.shape or numbers.shape != pixels.shape[:2]:
                raise ValueError(
                    f"images of a batch and their maps must have one size, got {pixels.shape[:2]} and {numbers.shape} "
                    f"beside {first.shape[:2]}"
                )
            images[row], maps[row] = pixels, numbers
        there = (maps != NONE) & ~((maps == 0) & self.reduce)
        labels = np.where(there, maps - self.reduce, 0).astype(np.int32)
        if labels.max() >= self.classes:
            raise ValueError(f"maps must have classes below {self.classes}, got {labels.max()}")
        return {"inputs": {"images": images}, "labels": labels, "weights": there.astype(np.float32)}
