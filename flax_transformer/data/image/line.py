"""What is said of pictures by lines of JSON: the files of a folder, the pictures they name, and what is refused."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from flax_transformer.data.image.split import split_of

NAMES = ("image", "file_name", "filename")
"""What a line may call the picture's file."""
PLACES = ("", "images", "Images", "pictures")
"""Where pictures are, below the folder."""
SUFFIXES = (".jsonl", ".jl")


def line_files(root: Path, what: str) -> dict[str, Path]:
    """Find the file of each split: a word in its name says which; a single file needs none.

    Args:
      what: they tell, "captions".

    Raises:
      FileNotFoundError: no such folder.
      ValueError: no files, several of one split, or none to train on.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"{root} must be a folder of pictures and their {what}, there is none")
    paths = sorted(path for path in root.iterdir() if path.suffix in SUFFIXES and not path.name.startswith("."))
    if not paths:
        raise ValueError(f"{root} must have {what} in a file of JSON lines, such as train.jsonl, got none")
    files: dict[str, Path] = {}
    for path in paths:
        split = split_of(path.stem) or ("train" if len(paths) == 1 else None)
        if split is None:
            raise ValueError(f"{path} must name its split, train, validation or test, as there are several files")
        if split in files:
            raise ValueError(f"a split must have one file of {what}, got {files[split]} and {path}")
        files[split] = path
    if "train" not in files:
        raise ValueError(f"{root} must have {what} of a split train, got those of {', '.join(files)}")
    return files


def read_lines(path: Path, keys: str) -> Iterator[tuple[int, str, str, dict[str, Any]]]:
    """Read a file line by line: its number, where that is, the name of the picture, and all that is said.

    Args:
      keys: that an object must have, for the message.

    Raises:
      ValueError: no lines, what is no JSON, or a line without a picture within the folder; names file and line.
    """
    number = None
    for number, line in ((n, line) for n, line in enumerate(path.read_bytes().splitlines(), 1) if line.strip()):
        where = f"{path}, line {number}"
        try:
            said = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where} must be JSON: {error}") from error
        if not isinstance(said, dict):
            raise ValueError(f"{where} must be an object with image and {keys}, got {line[:60]!r}")
        name = next((said[key] for key in NAMES if said.get(key) is not None), None)
        if not isinstance(name, str) or not name or "\0" in name:
            raise ValueError(f"{where} must name its picture as image, got {name!r}")
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ValueError(f"{where}: the picture must lie within the folder, got {name!r}")
        yield number, where, name, said
    if number is None:
        raise ValueError(f"{path} must have at least one line, got none")


def texts_of(said: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[str, ...] | None:
    """Give the text, or texts, that a line has under one of some keys; None where they are none, or empty."""
    texts = next((said[key] for key in keys if said.get(key) is not None), None)
    texts = [texts] if isinstance(texts, str) else texts
    good = isinstance(texts, list) and texts and all(isinstance(each, str) and each.strip() for each in texts)
    return tuple(texts) if good else None


def find_pictures(root: Path, path: Path, names: Mapping[str, int]) -> list[str]:
    """Find the folder that has the pictures, and all of them in it; `names` are told by these lines.

    Raises:
      ValueError: a picture that is not there; names the line.
    """
    first = next(iter(names))
    place = next((place for place in PLACES if (root / place / first).is_file()), None)
    if place is None:
        raise ValueError(
            f"{path}, line {names[first]}: the picture {first} must be there, it is in no folder of {root}"
        )
    for name, number in names.items():
        if not (root / place / name).is_file():
            raise ValueError(f"{path}, line {number}: the picture {name} must be there, {root / place} lacks it")
    return [str(PurePosixPath(place) / name) for name in names]


def check_apart(files: Mapping[str, Path], splits: Mapping[str, Any]) -> None:
    """Refuse a picture that is in two splits: a test on it would say nothing."""
    seen: dict[str, str] = {}
    for split, each in splits.items():
        for name in each.images.names:
            if (other := seen.setdefault(name, split)) != split:
                raise ValueError(f"splits must have different pictures, {name} is in {files[other]} and {files[split]}")
