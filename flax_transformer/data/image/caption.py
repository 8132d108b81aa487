"""Images and what is said of each: captions that a json file tells.

Axes: B images.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from flax_transformer.data.identity import digest
from flax_transformer.data.image.image_set import Files, Images, ImageSet
from flax_transformer.data.json_line import JsonLineSchema, open_json_lines
from flax_transformer.data.split import complete_splits, normal
from flax_transformer.frozen import frozen

NAMES = "image", "file_name", "filename"
"""What a line may call its image."""
PLACES = "", "images", "Images", "pictures"
"""Where images are, below the folder."""
LINES = JsonLineSchema(
    one="image",
    many="images and their captions",
    names=NAMES,
    said="captions",
    texts=("captions", "caption", "text"),
    places=PLACES,
)


@dataclass(frozen=True, eq=False)
class Captioned(Sequence[Any]):
    """Images and the captions of each."""

    images: Images
    captions: Sequence[tuple[str, ...]]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Decode one: `image`, Pillow's, and its `captions`."""
        return {"image": self.images[index], "captions": self.captions[index]}

    @property
    def fingerprint(self) -> str:
        """Name which images and captions they are."""
        return digest(self.images.fingerprint, json.dumps(list(self.captions)))

    def take(self, indices: Int[np.ndarray, "_"]) -> "Captioned":
        """Pick some."""
        return Captioned(self.images.take(indices), [self.captions[index] for index in indices])


@frozen
class CaptionData:
    """Images of a folder and captions, as files of JSON lines tell of them: `{"image": …, "captions": […]}` each.

    Which split a file is of, a word in its name says; a single file needs none. Images are looked for below the
    folder, and in its `images`.
    """

    root: str
    """The folder of the data."""
    holdout: float = 0.1
    """Share of the training images for each of validation and test that the folder lacks."""
    split_seed: int = 0
    """Which images these are."""

    def open(self) -> ImageSet:
        """Open the images without decoding them; errors as `open_captions`."""
        return open_captions(Path(self.root), holdout=self.holdout, seed=self.split_seed)


def open_captions(root: Path, *, holdout: float = 0.1, seed: int = 0) -> ImageSet:
    """Open images and captions, and hold out a part where there is no such split.

    Raises:
      FileNotFoundError: no such folder.
      ValueError: no lines, a line without an image or a caption, an image that is not there or named twice; names
          the file and the line.
    """
    splits = {
        split: Captioned(Files(each.root, each.names), each.texts)
        for split, each in open_json_lines(root, LINES).items()
    }
    return ImageSet("captions", held_out(splits, holdout, seed))


def held_out(splits: Mapping[str, Any], holdout: float, seed: int) -> dict[str, Any]:
    """Hold out images for the splits that there are not; by their names, whose order says nothing."""
    return complete_splits(splits, _names, _one_class, share=holdout, seed=seed)


def _names(pictures: Any) -> list[str]:
    return [normal(name) for name in pictures.images.names]


def _one_class(pictures: Any) -> Int[np.ndarray, " B"]:
    return np.zeros(len(pictures.images), np.int32)
