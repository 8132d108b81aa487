"""Pictures and what is said of each: captions that a json file tells.

Axes: B pictures.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from jaxtyping import Int

from flax_transformer.data.identity import digest
from flax_transformer.data.image.picture import Files, Images, ImageSet
from flax_transformer.data.image.split import completed, normal, split_of
from flax_transformer.frozen import frozen

NAMES, TEXTS = ("image", "file_name", "filename"), ("captions", "caption", "text")
"""What a line may call the picture's file and what is said of it."""
PLACES = ("", "images", "Images", "pictures")
"""Where pictures are, below the folder."""
SUFFIXES = (".jsonl", ".jl")


@dataclass(frozen=True, eq=False)
class Captioned(Sequence[Any]):
    """Pictures and the captions of each."""

    images: Images
    captions: Sequence[tuple[str, ...]]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Decode one: `image`, Pillow's, and its `captions`."""
        return {"image": self.images[index], "captions": self.captions[index]}

    @property
    def fingerprint(self) -> str:
        """Name which pictures and captions they are."""
        return digest(self.images.fingerprint, json.dumps(list(self.captions)))

    def take(self, indices: Int[np.ndarray, "_"]) -> "Captioned":
        """Pick some."""
        return Captioned(self.images.take(indices), [self.captions[index] for index in indices])


@frozen
class CaptionData:
    """Pictures of a folder and captions, as files of JSON lines tell of them: `{"image": …, "captions": […]}` each.

    Which split a file is of, a word in its name says; a single file needs none. Pictures are looked for below the
    folder, and in its `images`.
    """

    root: str
    holdout: float = 0.1
    """Share of the training pictures for each of validation and test that the folder lacks."""
    split_seed: int = 0
    """Which pictures these are."""

    def open(self) -> ImageSet:
        """Open the pictures without decoding them; errors as `open_captions`."""
        return open_captions(Path(self.root), holdout=self.holdout, seed=self.split_seed)


def open_captions(root: Path, *, holdout: float = 0.1, seed: int = 0) -> ImageSet:
    """Open pictures and captions, and hold out a part where there is no such split.

    Raises:
      FileNotFoundError: no such folder.
      ValueError: no lines, a line without a picture or a caption, a picture that is not there or named twice; names
          the file and the line.
    """
    root = root.expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"{root} must be a folder of pictures and their captions, there is none")
    paths = sorted(path for path in root.iterdir() if path.suffix in SUFFIXES and not path.name.startswith("."))
    if not paths:
        raise ValueError(f"{root} must have captions in a file of JSON lines, such as train.jsonl, got none")
    files: dict[str, Path] = {}
    for path in paths:
        split = split_of(path.stem) or ("train" if len(paths) == 1 else None)
        if split is None:
            raise ValueError(f"{path} must name its split, train, validation or test, as there are several files")
        if split in files:
            raise ValueError(f"a split must have one file of captions, got {files[split]} and {path}")
        files[split] = path
    if "train" not in files:
        raise ValueError(f"{root} must have captions of a split train, got those of {', '.join(files)}")
    splits = {split: _read(root, path) for split, path in files.items()}
    _check_apart(files, splits)
    return ImageSet("captions", held_by_name(splits, holdout, seed))


def held_by_name(splits: Mapping[str, Any], holdout: float, seed: int) -> dict[str, Any]:
    """Hold out pictures for the splits that there are not; by their names, whose order says nothing."""
    names = [normal(name) for name in splits["train"].images.names]
    return completed(splits, names, np.zeros(len(names), np.int32), holdout, seed)


def _read(root: Path, path: Path) -> Captioned:
    names: dict[str, int] = {}
    captions = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if line.strip():
            name, texts = _parse(line, f"{path}, line {number}")
            if name in names:
                raise ValueError(f"{path}: the pictures must differ, got {name} in lines {names[name]} and {number}")
            names[name] = number
            captions.append(texts)
    if not names:
        raise ValueError(f"{path} must have at least one line, got none")
    return Captioned(Files(root, _found(root, path, names)), captions)


def _parse(line: bytes, where: str) -> tuple[str, tuple[str, ...]]:
    """Read the picture's name and its captions from a line."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} must be JSON: {error}") from error
    if not isinstance(said, dict):
        raise ValueError(f"{where} must be an object with image and captions, got {line[:60]!r}")
    name = next((said[key] for key in NAMES if said.get(key) is not None), None)
    if not isinstance(name, str) or not name or "\0" in name:
        raise ValueError(f"{where} must name its picture as image, got {name!r}")
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise ValueError(f"{where}: the picture must lie within the folder, got {name!r}")
    texts = next((said[key] for key in TEXTS if said.get(key) is not None), None)
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not texts or not all(isinstance(each, str) and each.strip() for each in texts):
        raise ValueError(f"{where}: the picture {name} must have captions, texts that are not empty, got {texts!r:.60}")
    return name, tuple(texts)


def _found(root: Path, path: Path, names: Mapping[str, int]) -> list[str]:
    """Find the folder that has the pictures, and all of them in it."""
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


def _check_apart(files: Mapping[str, Path], splits: Mapping[str, Captioned]) -> None:
    """Refuse a picture that is in two splits: a test on it would say nothing."""
    seen: dict[str, str] = {}
    for split, each in splits.items():
        for name in each.images.names:
            if (other := seen.setdefault(name, split)) != split:
                raise ValueError(f"splits must have different pictures, {name} is in {files[other]} and {files[split]}")
