"""Files of a folder by number, and folders of class folders, of each split or of all files together.

Axes: B files.
"""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from flax_transformer.data.identity import digest
from flax_transformer.data.split import is_split_name, normal, split_of
from flax_transformer.frozen import frozen
from flax_transformer.listing import listed


@frozen
class FileType:
    """What a folder is searched for."""

    one: str
    """What messages call a file."""
    many: str
    """And several."""
    named: Callable[[str], bool]
    """Whether a file of this name is one, by its suffix."""
    forms: str = "class folders"
    """What a folder of them may have."""

    def shown(self, name: str) -> bool:
        """Whether a file of this name is one that is not hidden."""
        return self.named(name) and not _hidden(name)

    def files(self, folder: Path) -> list[str]:
        """Name those that lie in a folder, not below it."""
        return sorted(path.name for path in folder.iterdir() if path.is_file() and self.shown(path.name))

    def below(self, folder: Path) -> list[Path]:
        """Find all below a folder, sorted by their names in composed characters."""
        found: list[Path] = []
        for where, folders, files in os.walk(folder):
            folders[:] = [name for name in folders if not _hidden(name)]
            found += [Path(where, name) for name in files if self.shown(name)]
        return sorted(found, key=lambda path: normal(path.as_posix()))


class ClassFiles(NamedTuple):
    """The files of class folders, and the number of each one's class."""

    root: Path
    names: list[str]
    """Paths below `root`."""
    labels: Int[np.ndarray, " B"]


Found = tuple[dict[str, ClassFiles], tuple[str, ...]]


def open_folders(root: Path, kind: FileType) -> Found:
    """Find the files of class folders, `{root}/{class}/…` or `{root}/{split}/{class}/…`, and name the classes.

    Folders below a class folder belong to it; hidden files, and those of another kind, are left out.

    Raises:
      ValueError: no files, one class, an empty class folder, classes that differ between splits, files or other folders
          where only class folders may be.
    """
    folders = folders_of(root)
    splits = {name: folder for name, folder in folders.items() if is_split_name(name)}
    if not splits or ("train" not in map(split_of, splits) and len(splits) < len(folders)):
        found, classes = _read(root, kind)
        return {"train": found}, classes
    if len(splits) < len(folders) and all(map(kind.files, folders.values())):  # classes, of which one is named so
        found, classes = _read(root, kind)
        return {"train": found}, classes
    if len(splits) < len(folders) or kind.files(root):
        other = min([*(folders.keys() - splits.keys()), *kind.files(root)])
        raise ValueError(f"{root} must have folders of splits alone, as it has {listed(splits)}, got {other}")
    read: dict[str, tuple[ClassFiles, tuple[str, ...]]] = {}
    for name, folder in splits.items():
        split = split_of(name)
        if split in read:
            raise ValueError(f"{root} must have one folder for the split {split}, got {listed(splits)}")
        read[split] = _read(folder, kind)
    first = "train" if "train" in read else next(iter(read))
    classes = read[first][1]
    for split, (_, theirs) in read.items():
        if theirs != classes:
            differ = listed(sorted(set(theirs) ^ set(classes)))
            raise ValueError(f"all splits of {root} must have the same classes, {split} and {first} differ in {differ}")
    return {split: files for split, (files, _) in read.items()}, classes


def has_class_folders(root: Path, kind: FileType) -> bool:
    """Whether at least two folders have files of a kind."""
    return sum(bool(kind.files(folder)) for folder in folders_of(root).values()) > 1


def sort_names(names: list[str]) -> tuple[str, ...]:
    """Sort names of classes, as numbers if they all are."""
    numbers = all(re.fullmatch("[0-9]{1,9}", name) for name in names)
    return tuple(sorted(names, key=(lambda name: (int(name), name)) if numbers else None))


def _read(root: Path, kind: FileType) -> tuple[ClassFiles, tuple[str, ...]]:
    """Read class folders: their files, in the order of their names, and the classes."""
    folders = {normal(name): folder for name, folder in folders_of(root).items()}
    loose = kind.files(root)
    if len(folders) < 2 and (folders or loose):
        raise ValueError(f"{root} must have a folder for each of at least two classes, got {len(folders)}")
    if not folders:
        archive = next((name for name in sorted(os.listdir(root)) if re.search(r"\.(zip|tgz|tar|tar\.\w+)$", name)), "")
        hint = f"; unpack {archive} first" if archive else ""
        raise ValueError(f"{root} must have {kind.forms}, got none{hint}")
    if loose:
        raise ValueError(f"{root} must have its {kind.many} in class folders, got {loose[0]} beside {min(folders)}")
    classes = sort_names(list(folders))
    names, labels = [], []
    for label, name in enumerate(classes):
        below = kind.below(folders[name])
        if not below:
            raise ValueError(f"{folders[name]} must have at least one {kind.one}, as every class folder, got none")
        names += [str(path.relative_to(root)) for path in below]
        labels += [label] * len(below)
    return ClassFiles(root, names, np.array(labels, np.int32)), classes


def inner_folder(root: Path, kind: FileType) -> Path | None:
    """Return a folder's only folder, as an unpacked archive has it, unless it is a class or a split."""
    folders = folders_of(root)
    if len(folders) != 1 or kind.files(root) or is_split_name(*folders):
        return None
    (inner,) = folders.values()
    return None if kind.files(inner) else inner


def folders_of(root: Path) -> dict[str, Path]:
    """Return the folders of a folder by their names, but hidden ones."""
    return {path.name: path for path in sorted(root.iterdir()) if path.is_dir() and not _hidden(path.name)}


def _hidden(name: str) -> bool:
    return name.startswith((".", "__"))


@dataclass(frozen=True, eq=False)
class NamedFiles:
    """Files that lie in a folder; a subclass reads them."""

    root: Path
    names: Sequence[str]
    """Paths below the folder."""

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def fingerprint(self) -> str:
        """Name which they are: by the paths of all files and how many bytes each has."""
        files = (file for name in self.names for file in self.files(self.root / name))
        return digest(*(f"{file.relative_to(self.root).as_posix()} {file.stat().st_size}\n" for file in files))

    def files(self, path: Path) -> Iterable[Path]:
        """List the files that one is made of."""
        return (path,)

    def name(self, index: int) -> str:
        """Return where one comes from."""
        return str(self.root / self.names[index])

    def take(self, indices: Int[np.ndarray, "_"]) -> "NamedFiles":
        """Pick some."""
        return replace(self, names=[self.names[index] for index in indices])
