"""A folder of class folders, of each split or of all pictures together."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flax_transformer.data.image.decode import is_image_name
from flax_transformer.data.image.picture import Files, Pictures
from flax_transformer.data.image.split import names_split, normal, split_of

Read = Callable[[Path], tuple[Any, tuple[str, ...]]]
"""Reads class folders: what there is, with `take(indices)`, and the names of the classes."""
Loose = Callable[[Path], list[str]]
"""Names the files of a folder that may not lie beside class folders."""


def open_folders(
    root: Path, read: Read | None = None, loose: Loose | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Find the pictures of class folders, `{root}/{class}/…` or `{root}/{split}/{class}/…`, and name the classes.

    Folders below a class folder belong to it; hidden files, and those without a picture's suffix, are left out.

    Args:
      read, loose: of what is no picture.

    Raises:
      ValueError: no pictures, one class, an empty class folder, classes that differ between splits, pictures or
          other folders where only class folders may be.
    """
    read, loose, folders = read or _read, loose or _images, folders_in(root)
    splits = {name: folder for name, folder in folders.items() if names_split(name)}
    if "train" not in map(split_of, splits):
        if splits and len(splits) == len(folders):
            raise ValueError(f"{root} must have a folder train beside {', '.join(splits)}")
        pictures, classes = read(root)
        return {"train": pictures}, classes
    if len(splits) < len(folders) and all(map(loose, folders.values())):  # classes, of which one is named so
        pictures, classes = read(root)
        return {"train": pictures}, classes
    if len(splits) < len(folders) or loose(root):
        other = min([*(folders.keys() - splits.keys()), *loose(root)])
        raise ValueError(f"{root} must have folders of splits alone, as it has {', '.join(splits)}, got {other}")
    found: dict[str, tuple[Any, tuple[str, ...]]] = {}
    for name, folder in splits.items():
        split = split_of(name)
        if split in found:
            raise ValueError(f"{root} must have one folder for the split {split}, got {', '.join(splits)}")
        found[split] = read(folder)
    classes = found["train"][1]
    for split, (_, theirs) in found.items():
        if theirs != classes:
            differ = ", ".join(sorted(set(theirs) ^ set(classes)))
            raise ValueError(f"all splits of {root} must have the same classes, {split} and train differ in {differ}")
    return {split: pictures for split, (pictures, _) in found.items()}, classes


def has_class_folders(root: Path) -> bool:
    """Whether at least two folders have pictures."""
    return sum(bool(_images(folder)) for folder in folders_in(root).values()) > 1


def sort_names(names: list[str]) -> tuple[str, ...]:
    """Sort names of classes, as numbers if they all are."""
    numbers = all(re.fullmatch("[0-9]{1,9}", name) for name in names)
    return tuple(sorted(names, key=(lambda name: (int(name), name)) if numbers else None))


def _read(root: Path) -> tuple[Pictures, tuple[str, ...]]:
    """Read class folders: their pictures, in the order of their names, and the classes."""
    classes, names, labels = read_classes(root, _below, _images, "picture")
    return Pictures(Files(root, names), np.array(labels, np.int32)), classes


def read_classes(
    root: Path, below: Callable[[Path], list[Path]], loose: Loose, what: str
) -> tuple[tuple[str, ...], list[str], list[int]]:
    """List what is in class folders: the classes, names of what is below `root` in their order, and their classes.

    Args:
      below: lists what is in a class folder.
      what: one of them, in a word.

    Raises:
      ValueError: fewer than two classes, one without any, or files beside the folders.
    """
    folders = {normal(name): folder for name, folder in folders_in(root).items()}
    beside = loose(root)
    if len(folders) < 2 and (folders or beside):
        raise ValueError(f"{root} must have a folder for each of at least two classes, got {len(folders)}")
    if not folders:
        archive = next((name for name in sorted(os.listdir(root)) if re.search(r"\.(zip|tgz|tar|tar\.\w+)$", name)), "")
        hint = f"; unpack {archive} first" if archive else ""
        forms = "class folders, COCO's or TFDS's annotations, or idx files" if what == "picture" else "class folders"
        raise ValueError(f"{root} must have {forms}, got none{hint}")
    if beside:
        raise ValueError(f"{root} must have its {what}s in class folders, got {beside[0]} beside {min(folders)}")
    classes = sort_names(list(folders))
    names, labels = [], []
    for label, name in enumerate(classes):
        found = below(folders[name])
        if not found:
            raise ValueError(f"{folders[name]} must have a {what}, as every class folder, got none")
        names += [str(path.relative_to(root)) for path in found]
        labels += [label] * len(found)
    return classes, names, labels


def inner_folder(root: Path) -> Path | None:
    """Give a folder's only folder, as an unpacked archive has it, unless it is a class or a split."""
    folders = folders_in(root)
    if len(folders) != 1 or _images(root) or names_split(*folders):
        return None
    (inner,) = folders.values()
    return None if _images(inner) else inner


def folders_in(root: Path) -> dict[str, Path]:
    """Give the folders in a folder by their names, but for hidden ones."""
    return {path.name: path for path in sorted(root.iterdir()) if path.is_dir() and not _hidden(path.name)}


def _images(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.is_file() and _shown(path.name))


def _below(folder: Path) -> list[Path]:
    """Find all pictures below a folder, sorted by their names in composed characters."""
    found = []
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _hidden(name)]
        found += [Path(where, name) for name in files if _shown(name)]
    return sorted(found, key=lambda path: normal(path.as_posix()))


def _shown(name: str) -> bool:
    return is_image_name(name) and not _hidden(name)


def _hidden(name: str) -> bool:
    return name.startswith((".", "__"))
