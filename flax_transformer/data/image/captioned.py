"""Pictures and what is said of each: captions that a json file tells.

Axes: B pictures.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from flax_transformer.data.identity import digest
from flax_transformer.data.image.line import check_apart, find_pictures, line_files, read_lines, texts_of
from flax_transformer.data.image.picture import Files, Images, ImageSet
from flax_transformer.data.image.split import SPLITS, hold_out, normal
from flax_transformer.frozen import frozen

TEXTS = ("captions", "caption", "text")
"""What a line may call what is said of its picture."""


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
    files = line_files(root, "captions")
    splits = {split: _read(root, path) for split, path in files.items()}
    check_apart(files, splits)
    return ImageSet("captions", completed(splits, holdout, seed))


def completed(splits: Mapping[str, Any], holdout: float, seed: int) -> dict[str, Any]:
    """Hold out pictures for the splits that there are not; by their names, whose order says nothing."""
    missing = [split for split in SPLITS if split not in splits]
    if missing:
        train = splits["train"]
        names = [normal(name) for name in train.images.names]
        parts = hold_out(names, np.zeros(len(names), np.int32), missing, share=holdout, seed=seed)
        splits = {**splits, **{split: train.take(indices) for split, indices in parts.items()}}
    return {split: splits[split] for split in SPLITS}


def _read(root: Path, path: Path) -> Captioned:
    names: dict[str, int] = {}
    captions = []
    for number, where, name, said in read_lines(path, "captions"):
        texts = texts_of(said, TEXTS)
        if texts is None:
            got = next((said[key] for key in TEXTS if said.get(key) is not None), None)
            raise ValueError(
                f"{where}: the picture {name} must have captions, texts that are not empty, got {got!r:.60}"
            )
        if name in names:
            raise ValueError(f"{path}: the pictures must differ, got {name} in lines {names[name]} and {number}")
        names[name] = number
        captions.append(texts)
    return Captioned(Files(root, find_pictures(root, path, names)), captions)
