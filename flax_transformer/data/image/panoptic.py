"""Images parted into segments, in the form of COCO's panoptic task (https://cocodataset.org/#format-data).

A JSON file has annotations, and a folder beside it PNG files whose colours are the ids of segments.

Axes: H W height and width in pixels, M segments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8

from flax_transformer.data.folder import NamedFiles
from flax_transformer.data.image.coco import (
    Annotations,
    by_id,
    file_name,
    find_images,
    read_categories,
    read_sections,
    read_size,
)
from flax_transformer.data.image.image_set import Files
from flax_transformer.data.image.text import held_out
from flax_transformer.data.split import split_of
from flax_transformer.data.table import DataSet, Table
from flax_transformer.frozen import frozen
from flax_transformer.listing import listed

BEGIN = "panoptic_"
"""How names of the files of annotations begin."""


def colours_to_ids(pixels: UInt8[np.ndarray, "H W 3"]) -> Int[np.ndarray, "H W"]:
    """Return the ids that colours stand for: red + 256 · green + 256² · blue.

    >>> colours_to_ids(np.array([[[1, 2, 0]]], np.uint8)).tolist()
    [[513]]
    """
    red, green, blue = np.moveaxis(pixels.astype(np.int32), -1, 0)
    return red + 256 * green + 256**2 * blue


def ids_to_colours(numbers: Int[np.ndarray, "H W"]) -> UInt8[np.ndarray, "H W 3"]:
    """Return the colours that stand for ids.

    >>> ids_to_colours(np.array([[513]])).tolist()
    [[[1, 2, 0]]]
    """
    return np.stack([numbers >> shift & 255 for shift in (0, 8, 16)], axis=-1).astype(np.uint8)


@dataclass(frozen=True, eq=False)
class SegmentFiles(NamedFiles):
    """Maps of segments that are PNG files, with what is said of their segments elsewhere.

    Each is `numbers` [H, W], ids of segments and 0 for none, and `ids`, `classes` and `crowd` [M] of the segments, as
    `metric.panoptic_quality` takes them.
    """

    segments: Sequence[Mapping[str, np.ndarray]] = ()
    """Of each map the `ids`, `classes` and `crowd` of its segments."""

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        import PIL.Image

        path = self.root / self.names[index]
        try:
            with PIL.Image.open(path) as image:
                if image.mode != "RGB":
                    raise ValueError(f"{path} must have colours of 8 bits that are ids, it is of mode {image.mode}")
                numbers = colours_to_ids(np.asarray(image))
        except (OSError, SyntaxError) as error:
            raise ValueError(f"{path} must be a PNG of ids of segments: {error}") from error
        said, seen = self.segments[index], {*np.unique(numbers).tolist()} - {0}
        if seen != (known := {*said["ids"].tolist()}):
            differ = listed(sorted(seen ^ known))
            raise ValueError(f"{path} must have the ids of its segments_info and no others, they differ in {differ}")
        return {"numbers": numbers, **said}

    def take(self, indices: Int[np.ndarray, "_"]) -> "SegmentFiles":
        """Pick some."""
        return replace(super().take(indices), segments=[self.segments[index] for index in indices])


@dataclass(frozen=True)
class PanopticSet(DataSet):
    """Images and maps of segments: columns `image` and `segments`."""

    things: tuple[bool, ...] = ()
    """Of each class, whether its objects are counted one by one."""


@frozen
class PanopticData:
    """Images and segments of a folder in the form of COCO's panoptic task.

    `annotations/panoptic_train2017.json` has images, annotations and categories, and the PNG files are in
    `annotations/panoptic_train2017`; the JSON files may also lie in the folder itself. Which split a file is of, a word
    in its name says; what lacks a validation or a test split gives a share for it. Images are looked for as those of
    COCO's boxes, in folders named as the split is.
    """

    root: str
    """The folder of the data."""
    holdout: float = 0.1
    """Share of the images for each of validation and test that the folder lacks."""
    split_seed: int = 0
    """Which images these are."""

    def open(self) -> PanopticSet:
        """Open images and maps without decoding them.

        Raises:
          FileNotFoundError: no such folder.
          ValueError: no annotations, two files for one split, ids that are missing, doubled or unknown, files that are
            not there, or categories that differ between splits; names file, id and value.
        """
        root = Path(self.root).expanduser()
        if not root.is_dir():
            raise FileNotFoundError(f"{root} must be a folder of images, there is none")
        files = _find(root)
        kinds = {split: (read_categories(file), _things(file)) for split, file in files.items()}
        names, things = kinds["train"]
        for split, found in kinds.items():
            if found != (names, things):
                raise ValueError(
                    f"all splits must have the same categories, those of {files[split].path} differ from "
                    f"{files['train'].path}"
                )
        numbers = {id: number for number, id in enumerate(names)}
        splits = {split: _table(root, split, file, numbers) for split, file in files.items()}
        splits = held_out(splits, self.holdout, self.split_seed, root)
        return PanopticSet(
            splits, tuple(names.values()), "segments", class_ids=tuple(names), things=tuple(things.values())
        )


def _find(root: Path) -> dict[str, Annotations]:
    """Read the files of annotations by their splits."""
    found: dict[str, Annotations] = {}
    paths = sorted(path for folder in (root, root / "annotations") for path in folder.glob(f"{BEGIN}*.json"))
    for path in paths:
        split = split_of(path.stem) or ("train" if len(paths) == 1 else None)
        if split is None:
            raise ValueError(f"{path} must name its split, train, validation or test, in its name")
        if split in found:
            raise ValueError(f"a split must have one file of annotations, got {found[split].path} and {path}")
        if (read := read_sections(path)) is None:
            raise ValueError(f"{path} must have lists of images, annotations and categories")
        found[split] = read
    if "train" not in found:
        raise ValueError(f"{root} must have a file {BEGIN}train….json to train on, it has {listed(found) or 'none'}")
    return found


def _things(file: Annotations) -> dict[int, bool]:
    found = {id: item.get("isthing") for id, item in sorted(by_id(file, "categories").items())}
    for id, thing in found.items():
        if thing not in (0, 1):
            raise ValueError(f"{file.path}: the isthing of category {id} must be 0 or 1, got {thing!r}")
    return {id: bool(thing) for id, thing in found.items()}


def _table(root: Path, split: str, file: Annotations, numbers: Mapping[int, int]) -> Table:
    images, folder = by_id(file, "images"), file.path.with_suffix("")
    if not images:
        raise ValueError(f"{file.path} must have at least one image, got none")
    maps: dict[int, tuple[str, Mapping[str, np.ndarray]]] = {}
    for item in file.sections["annotations"]:
        id = item.get("image_id")
        if not isinstance(id, int) or id not in images:
            raise ValueError(f"{file.path}: an annotation must be of a known image, got image_id {id!r}")
        if id in maps:
            raise ValueError(f"{file.path}: an image must have one annotation, image {id} has two")
        name = file_name(file, f"the annotation of image {id}", item)
        if not (folder / name).is_file():
            raise ValueError(f"{file.path}: the map {name} of image {id} must be there, {folder} lacks it")
        maps[id] = str((folder / name).relative_to(root)), _segments(file, id, item, numbers)
    if missing := [id for id in images if id not in maps]:
        raise ValueError(f"{file.path}: every image must have an annotation, image {missing[0]} has none")
    sizes = [read_size(file, id, image) for id, image in images.items()]
    names, said = zip(*(maps[id] for id in images), strict=True)
    return Table({
        "image": Files(root, find_images(root, split, file, images), sizes=sizes),
        "segments": SegmentFiles(root, list(names), segments=list(said)),
    })  # fmt: skip


def _segments(
    file: Annotations, image: int, item: Mapping[str, Any], numbers: Mapping[int, int]
) -> dict[str, np.ndarray]:
    """Read what an annotation says of its segments."""
    given = item.get("segments_info")
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise ValueError(f"{file.path}: the annotation of image {image} must have a list of segments_info")
    found: dict[int, tuple[int, bool]] = {}
    for each in given:
        id, category, crowd = each.get("id"), each.get("category_id"), each.get("iscrowd", 0)
        if type(id) is not int or not 0 < id < 256**3 or id in found:
            raise ValueError(
                f"{file.path}: segments of image {image} must have ids of their own from 1 to {256**3 - 1}, got {id!r}"
            )
        if not isinstance(category, int) or category not in numbers:
            raise ValueError(f"{file.path}: segment {id} must be of a known category, got category_id {category!r}")
        if crowd not in (0, 1):
            raise ValueError(f"{file.path}: the iscrowd of segment {id} must be 0 or 1, got {crowd!r}")
        found[id] = numbers[category], bool(crowd)
    classes, crowds = zip(*found.values(), strict=True) if found else ((), ())
    return {
        "ids": np.array([*found], np.int64), "classes": np.array(classes, np.int64), "crowd": np.array(crowds, bool),
    }  # fmt: skip
