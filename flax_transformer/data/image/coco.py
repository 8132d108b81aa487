"""Images with boxes, as COCO's json files tell of them."""

import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from flax_transformer.data.image.image_set import Files, Objects, image_scenes
from flax_transformer.data.split import is_split_name, split_of
from flax_transformer.data.table import Table
from flax_transformer.listing import listed

SLACK = 0.5
"""Pixels by which a box may reach out of its image, for numbers are rounded; it is cut off."""

_SECTIONS = ("images", "annotations", "categories")
_PLACES = ("", "..", "images", "../images", "JPEGImages", "../JPEGImages")


@dataclass(frozen=True)
class Annotations:
    """A file of annotations that has been read, not yet looked at."""

    path: Path
    sections: Mapping[str, list]


def find_coco(root: Path) -> dict[str, Annotations]:
    """Read COCO's json files in a folder, in its `annotations` and in its splits' folders, by their splits.

    Which split a file is of, a word in its name says, or its folder's; a single file needs none, it is `train`. Where
    names begin with `instances`, other files are left out, and so are those without categories.

    Raises:
      ValueError: a file that cannot be read, or two for one split.
    """
    folders = [root, *(path for path in root.glob("*/") if path.name == "annotations" or is_split_name(path.name))]
    paths = sorted(path for folder in folders for path in folder.glob("[!.]*.json"))
    instances = [path for path in paths if path.name.lower().startswith("instances")]
    read = [each for path in instances or paths if (each := read_sections(path))]
    found: dict[str, Annotations] = {}
    for each in read:
        inner = "" if each.path.parent == root else each.path.parent.name
        split = split_of(each.path.stem) or split_of(inner) or ("train" if len(read) == 1 else None)
        if split is None:
            raise ValueError(f"{each.path} must name its split, train, validation or test, in its name or its folder's")
        if split in found:
            raise ValueError(f"a split must have one file of annotations, got {found[split].path} and {each.path}")
        found[split] = each
    return found


def open_coco(
    root: Path, found: Mapping[str, Annotations]
) -> tuple[dict[str, Table], tuple[str, ...], tuple[int, ...]]:
    """Check the annotations of all splits: the scenes, the names of the classes and their ids, in the ids' order.

    A box is left, top, width and height in pixels; those of crowds (`iscrowd`) are kept apart. Images are looked for
    beside the json file, in `images` and in folders named as the split is.

    Raises:
      ValueError: ids that are missing, doubled or unknown, boxes outside the image or of no area, images that are
          not there, or classes that differ between splits; names file, id and value.
    """
    categories = {split: read_categories(each) for split, each in found.items()}
    classes = categories["train" if "train" in categories else next(iter(categories))]
    for split, theirs in categories.items():
        if theirs != classes:
            differ = listed(sorted(set(theirs.items()) ^ set(classes.items())))
            raise ValueError(f"all splits must have the same categories, {found[split].path} differs in {differ}")
    number_of = {id: number for number, id in enumerate(classes)}
    splits = {split: _scenes(root, split, each, number_of) for split, each in found.items()}
    return splits, tuple(classes.values()), tuple(classes)


def read_sections(path: Path) -> Annotations | None:
    """Read a json file, if it is of annotations with categories."""
    try:
        read = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be JSON: {error}") from error
    if not isinstance(read, dict) or not all(isinstance(read.get(name), list) for name in _SECTIONS):
        return None
    for name in _SECTIONS:
        for each in read[name]:
            if not isinstance(each, dict):
                raise ValueError(f"{path}: every item of {name} must be an object, got {json.dumps(each)[:60]}")
    return Annotations(path, {name: read[name] for name in _SECTIONS})


def by_id(file: Annotations, section: str) -> dict[int, dict]:
    """Return the items of a section by their ids."""
    found: dict[int, dict] = {}
    for item in file.sections[section]:
        id = item.get("id")
        if not isinstance(id, int) or isinstance(id, bool):
            raise ValueError(f"{file.path}: every item of {section} must have a whole number as id, got {id!r}")
        if id in found:
            raise ValueError(f"{file.path}: the ids of {section} must differ, got {id} twice")
        found[id] = item
    return found


def read_categories(file: Annotations) -> dict[int, str]:
    """Return the names of the categories by their ids, in the ids' order.

    Raises:
      ValueError: none, one without a name, or two of one name.
    """
    names = {id: item.get("name") for id, item in sorted(by_id(file, "categories").items())}
    if not names:
        raise ValueError(f"{file.path} must have at least one category, got none")
    for id, name in names.items():
        if not isinstance(name, str) or not name:
            raise ValueError(f"{file.path}: category {id} must have a name, got {name!r}")
        if twice := [other for other in names if other < id and names[other] == name]:
            raise ValueError(f"{file.path}: the names of categories must differ, got {name!r} for {twice[0]} and {id}")
    return names


def _scenes(root: Path, split: str, file: Annotations, number_of: Mapping[int, int]) -> Table:
    images = by_id(file, "images")
    if not images:
        raise ValueError(f"{file.path} must have at least one image, got none")
    paths = find_images(root, split, file, images)
    files = Files(root, paths, sizes=[read_size(file, id, image) for id, image in images.items()])
    sizes = {id: files.size(number) for number, id in enumerate(images)}
    found: dict[int, list] = {id: [] for id in images}
    for id, item in by_id(file, "annotations").items():
        image, category = item.get("image_id"), item.get("category_id")
        if not isinstance(image, int) or image not in images:
            raise ValueError(f"{file.path}: annotation {id} must be of a known image, got image_id {image!r}")
        if not isinstance(category, int) or category not in number_of:
            raise ValueError(f"{file.path}: annotation {id} must be of a known category, got category_id {category!r}")
        box = _box(file, id, item.get("bbox"), sizes[image])
        crowd = item.get("iscrowd", 0)
        if type(crowd) is not int or crowd not in (0, 1):
            raise ValueError(f"{file.path}: the iscrowd of annotation {id} must be 0 or 1, got {crowd!r}")
        area = item.get("area")
        area = (box[2] - box[0]) * (box[3] - box[1]) if area is None else area
        if not _is_number(area) or area < 0:
            raise ValueError(f"{file.path}: the area of annotation {id} must be a number of pixels, got {area!r}")
        found[image].append((box, number_of[category], area, bool(crowd)))
    return image_scenes(files, [_objects(each) for each in found.values()], np.array(list(images), np.int64))


def _objects(found: Sequence[tuple[list[float], int, int | float, bool]]) -> Objects:
    boxes, classes, areas, crowd = zip(*found, strict=True) if found else ((),) * 4
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    return Objects.from_annotations(boxes, np.array(classes, np.int32), np.array(areas, float), np.array(crowd, bool))


def _box(file: Annotations, id: int, box: Any, size: tuple[int, int]) -> list[float]:
    """Turn left, top, width and height into left, top, right and bottom."""
    if not isinstance(box, list) or len(box) != 4 or not all(_is_number(each) for each in box):
        raise ValueError(f"{file.path}: annotation {id} must have a bbox of four numbers, got {box!r}")
    left, top, width, height = map(float, box)
    if width <= 0 or height <= 0:
        raise ValueError(f"{file.path}: the bbox of annotation {id} must have an area, got {box}")
    right, bottom = left + width, top + height
    if min(left, top) < -SLACK or right > size[0] + SLACK or bottom > size[1] + SLACK:
        raise ValueError(
            f"{file.path}: the bbox of annotation {id} must lie within its image of {size[0]} × {size[1]}, got {box}"
        )
    left, top, right, bottom = max(left, 0.0), max(top, 0.0), min(right, float(size[0])), min(bottom, float(size[1]))
    if left >= right or top >= bottom:
        raise ValueError(f"{file.path}: the bbox of annotation {id} must have an area within its image, got {box}")
    return [left, top, right, bottom]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def read_size(file: Annotations, id: int, image: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the width and height that an image is said to have; None where nothing is said.

    Raises:
      ValueError: what are no pixels.
    """
    width, height = image.get("width"), image.get("height")
    if width is None or height is None:
        return None
    if not all(isinstance(each, int) and each > 0 for each in (width, height)):
        raise ValueError(f"{file.path}: image {id} must have a width and height of pixels, got {width!r}, {height!r}")
    return width, height


def find_images(root: Path, split: str, file: Annotations, images: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Find the folder that has a split's images, and all of them in it; return their paths below the root.

    Raises:
      ValueError: names that are no paths within a folder, images of one name, or some that are not there.
    """
    names = [file_name(file, f"image {id}", image) for id, image in images.items()]
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"{file.path}: the images must differ, got {count} images of {name}")
    top, beside = _plain(root), [path for path in sorted(root.glob("*/")) if split_of(path.name) == split]
    inner = [path for path in sorted(root.glob("images/*/")) if split_of(path.name) == split]
    here = [*beside, *inner, *(file.path.parent / place for place in _PLACES), root]
    for folder in map(_plain, here):
        if folder.is_relative_to(top) and (folder / names[0]).is_file():
            break
    else:
        raise ValueError(f"{file.path}: the image {names[0]} must be there, it is in no folder of {root}")
    for id, name in zip(images, names, strict=True):
        if not (folder / name).is_file():
            raise ValueError(f"{file.path}: the image {name} of image {id} must be there, {folder} lacks it")
    return [str((folder / name).relative_to(top)) for name in names]


def _plain(path: Path) -> Path:
    """Write a path without `..`, its symbolic links as they are."""
    return Path(os.path.normpath(path))


def file_name(file: Annotations, of: str, item: Mapping[str, Any]) -> str:
    """Return the `file_name` of an item.

    Args:
      of: which item it is, for messages.

    Raises:
      ValueError: none, or one that is no path within a folder.
    """
    name = item.get("file_name")
    if not isinstance(name, str) or not name or "\0" in name:
        raise ValueError(f"{file.path}: {of} must have a file_name, got {name!r}")
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{file.path}: the file_name of {of} must lie within its folder, got {name!r}")
    return name
