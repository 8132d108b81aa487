"""Pairs of images that show the same thing: two folders whose files have the same names.

Axes: B pairs.
"""

from pathlib import Path

from flax_transformer.data.image.decode import is_image_name
from flax_transformer.data.image.image_set import Files, Images
from flax_transformer.data.image.text import held_out
from flax_transformer.data.split import is_split_name
from flax_transformer.data.table import DataSet, Table
from flax_transformer.frozen import frozen


def image_pairs(images: Images, others: Images) -> Table:
    """Put images and the other image of each in a table: `image`, `other`."""
    return Table({"image": images, "other": others})


@frozen
class ImagePairData:
    """Images of two folders, paired by their names: `{root}/{one}/{name}` and `{root}/{other}/{name}`."""

    root: str
    """The folder of the data."""
    holdout: float = 0.1
    """Share of the pairs for each of validation and test."""
    split_seed: int = 0
    """Which pairs these are."""

    def open(self) -> DataSet:
        """Open the pairs, and hold out a part of them.

        Raises:
          FileNotFoundError: no such folder.
          ValueError: not two folders of images, an image without another of its name, or too few.
        """
        root = Path(self.root).expanduser()
        if not root.is_dir():
            raise FileNotFoundError(f"{root} must be a folder of two folders of images, there is none")
        sides = {
            path.name: _names(path) for path in sorted(root.iterdir()) if path.is_dir() and path.name[0] not in "._"
        }
        sides = {side: names for side, names in sides.items() if names}
        if len(sides) != 2 or any(map(is_split_name, sides)):
            raise ValueError(f"{root} must have two folders of images, got {', '.join(sides) or 'none'}")
        (one, first), (other, second) = sides.items()
        for here, there, missing in ((one, other, first - second), (other, one, second - first)):
            if missing:
                raise ValueError(f"{root / here / min(missing)} must have an image of its name in {there}, it has none")
        both = [Files(root, [f"{side}/{name}" for name in sorted(first)]) for side in sides]
        splits = held_out({"train": image_pairs(*both)}, self.holdout, self.split_seed, root)
        return DataSet(splits, kind="pairs")


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file() and is_image_name(path.name)}
