"""A folder of class folders, of each split or of all pictures together."""

import os
import re
from pathlib import Path

import numpy as np

from flax_transformer.data.image.decode import is_image_name
from flax_transformer.data.image.picture import Files, Pictures
from flax_transformer.data.image.split import names_split, normal, split_of

Found = tuple[dict[str, Pictures], tuple[str, ...]]


def open_folders(root: Path) -> Found:
    """Find the pictures of class folders, `{root}/{class}/…` or `{root}/{split}/{class}/…`, and name the classes.

    Folders below a class folder belong to it; hidden files, and those without a picture's suffix, are left out.

    Raises:
      ValueError: no pictures, one class, an empty class folder, classes that differ between splits, pictures or
          other folders where only class folders may be.
    """
    folders = _folders(root)
    splits = {name: folder for name, folder in folders.items() if names_split(name)}
    if "train" not in map(split_of, splits):
        if splits and len(splits) == len(folders):
            raise ValueError(f"{root} must have a folder train beside {', '.join(splits)}")
        pictures, classes = _read(root)
        return {"train": pictures}, classes
    if len(splits) < len(folders) and all(map(_images, folders.values())):  # classes, of which one is named so
        pictures, classes = _read(root)
        return {"train": pictures}, classes
    if len(splits) < len(folders) or _images(root):
        other = min([*(folders.keys() - splits.keys()), *_images(root)])
        raise ValueError(f"{root} must have folders of splits alone, as it has {', '.join(splits)}, got {other}")
    read: dict[str, tuple[Pictures, tuple[str, ...]]] = {}
    for name, folder in splits.items():
        split = split_of(name)
        if split in read:
            raise ValueError(f"{root} must have one folder for the split {split}, got {', '.join(splits)}")
        read[split] = _read(folder)
    classes = read["train"][1]
    for split, (_, theirs) in read.items():
        if theirs != classes:
            differ = ", ".join(sorted(set(theirs) ^ set(classes)))
            raise ValueError(f"all splits of {root} must have the same classes, {split} and train differ in {differ}")
    return {split: pictures for split, (pictures, _) in read.items()}, classes


def has_class_folders(root: Path) -> bool:
    """Whether at least two folders have pictures."""
    return sum(bool(_images(folder)) for folder in _folders(root).values()) > 1


def sort_names(names: list[str]) -> tuple[str, ...]:
    """Sort names of classes, as numbers if they all are."""
    numbers = all(re.fullmatch("[0-9]{1,9}", name) for name in names)
    return tuple(sorted(names, key=(lambda name: (int(name), name)) if numbers else None))


def _read(root: Path) -> tuple[Pictures, tuple[str, ...]]:
    """Read class folders: their pictures, in the order of their names, and the classes."""
    folders = {normal(name): folder for name, folder in _folders(root).items()}
    loose = _images(root)
    if len(folders) < 2 and (folders or loose):
        raise ValueError(f"{root} must have a folder for each of at least two classes, got {len(folders)}")
    if not folders:
        archive = next((name for name in sorted(os.listdir(root)) if re.search(r"\.(zip|tgz|tar|tar\.\w+)$", name)), "")
        hint = f"; unpack {archive} first" if archive else ""
        raise ValueError(f"{root} must have class folders, COCO's or TFDS's annotations, or idx files, got none{hint}")
    if loose:
        raise ValueError(f"{root} must have its pictures in class folders, got {loose[0]} beside {min(folders)}")
    classes = sort_names(list(folders))
    names, labels = [], []
    for label, name in enumerate(classes):
        below = _below(folders[name])
        if not below:
            raise ValueError(f"{folders[name]} must have a picture, as every class folder, got none")
        names += [str(path.relative_to(root)) for path in below]
        labels += [label] * len(below)
    return Pictures(Files(root, names), np.array(labels, np.int32)), classes


def inner_folder(root: Path) -> Path | None:
    """Give a folder's only folder, as an unpacked archive has it, unless it is a class or a split."""
    folders = _folders(root)
    if len(folders) != 1 or _images(root) or names_split(*folders):
        return None
    (inner,) = folders.values()
    return None if _images(inner) else inner


def _folders(root: Path) -> dict[str, Path]:
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
