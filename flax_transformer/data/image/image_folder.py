"""Images of a folder of which nothing else is known, however deep they lie; and two sets of them, without pairs.

Axes: B images.
"""

from pathlib import Path

import numpy as np

from flax_transformer.data.folder import FileType
from flax_transformer.data.image.decode import is_image_name
from flax_transformer.data.image.image_set import Files
from flax_transformer.data.image.text import held_out
from flax_transformer.data.split import is_split_name, split_of
from flax_transformer.data.table import DataSet, Gathered, Table
from flax_transformer.frozen import frozen

IMAGE_FILES = FileType(one="image", many="images", named=is_image_name)


@frozen
class ImageFolderData:
    """All images below a folder, whatever they are of; those of folders `train`, `validation` and `test` are these
    splits, others are held out.
    """

    root: str
    """The folder of the data."""
    holdout: float = 0.1
    """Share of the training images for each of validation and test that the folder lacks."""
    split_seed: int = 0
    """Which images these are."""

    def open(self) -> DataSet:
        """Open the images, and hold out a part of them.

        Raises:
          FileNotFoundError: no such folder.
          ValueError: no images, or too few.
        """
        return DataSet(_splits(Path(self.root).expanduser(), self.holdout, self.split_seed), kind="images")


@frozen
class ImageSetsData(ImageFolderData):
    """Two sets of images between which no pairs are known: the folders of two folders, each as `ImageFolderData`."""

    def open(self) -> DataSet:
        """Open both sets; a split has as many rows as its larger set, and the smaller one's images several times.

        Raises:
          FileNotFoundError: no such folder.
          ValueError: not two folders of images, or too few images.
        """
        root = Path(self.root).expanduser()
        if not root.is_dir():
            raise FileNotFoundError(f"{root} must be a folder of two folders of images, there is none")
        sides = [path for path in sorted(root.iterdir()) if path.is_dir() and IMAGE_FILES.below(path)]
        if len(sides) != 2 or any(is_split_name(side.name) for side in sides):
            found = ", ".join(side.name for side in sides) or "none"
            raise ValueError(f"{root} must have two folders of images, got {found}")
        one, other = (_splits(side, self.holdout, self.split_seed) for side in sides)
        return DataSet({split: _beside(one[split], other[split]) for split in one}, kind="sets")


def _splits(root: Path, holdout: float, seed: int) -> dict[str, Table]:
    if not root.is_dir():
        raise FileNotFoundError(f"{root} must be a folder of images, there is none")
    found: dict[str, list[str]] = {}
    for path in IMAGE_FILES.below(root):
        parts = path.relative_to(root).parts
        split = split_of(parts[0]) if len(parts) > 1 and is_split_name(parts[0]) else "train"
        found.setdefault(split or "train", []).append("/".join(parts))
    if not found:
        raise ValueError(f"{root} must have images below it, there are none")
    tables = {split: Table({"image": Files(root, names)}) for split, names in found.items()}
    return held_out(tables, holdout, seed, root)


def _beside(one: Table, other: Table) -> Table:
    count = max(len(one), len(other))
    numbers = (np.arange(count) % len(each) for each in (one, other))
    sides = zip(("image", "other"), (one, other), numbers, strict=True)
    return Table({name: Gathered(side["image"], of) for name, side, of in sides})
