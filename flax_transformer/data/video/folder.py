"""A folder of class folders of clips: `{root}/{class}/{clip}`, or `{root}/{split}/{class}/{clip}`.

A clip is a folder of frames, pictures in the order of their names, or a video file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flax_transformer.data.image.folder import folders_in, open_folders, read_classes
from flax_transformer.data.image.split import completed, normal
from flax_transformer.data.video.clip import ClipFiles, LabelledClips, frame_files
from flax_transformer.data.video.decode import is_video_name
from flax_transformer.frozen import frozen


@dataclass(frozen=True)
class ClipSet:
    """Clips to train on and held-out ones."""

    splits: Mapping[str, LabelledClips]
    """`train`, `validation` and `test`."""
    classes: tuple[str, ...]
    channels: int = 3


@frozen
class ClipData:
    """Clips of class folders, which may be within `train`, `validation` and `test`."""

    root: str
    holdout: float = 0.1
    """Share of the training clips, of each class, for each of validation and test that the folder lacks."""
    split_seed: int = 0
    """Which clips these are."""

    def open(self) -> ClipSet:
        """Open the clips without decoding them; errors as `open_clips`."""
        return open_clips(Path(self.root).expanduser(), holdout=self.holdout, seed=self.split_seed)


def open_clips(root: Path, *, holdout: float = 0.1, seed: int = 0) -> ClipSet:
    """Find the clips of class folders, and hold out a part where there is no such split.

    Args:
      root: the folder.
      holdout: the share.
      seed: which clips are held out, with their names.

    Raises:
      FileNotFoundError: no such folder.
      ValueError: no clips, one class, a class folder without clips, loose frames, or too few clips to hold some out.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"{root} must be a folder of clips, there is none")
    splits, classes = open_folders(root, _read, _loose)
    train = splits["train"]
    names = [normal(Path(name).as_posix()) for name in train.clips.names]
    try:
        return ClipSet(completed(splits, names, train.labels, holdout, seed), classes)
    except ValueError as error:
        raise ValueError(f"{root}: {error}") from error


def _read(root: Path) -> tuple[LabelledClips, tuple[str, ...]]:
    classes, names, labels = read_classes(root, _clips, _loose, "clip")
    return LabelledClips(ClipFiles(root, names), np.array(labels, np.int32)), classes


def _loose(root: Path) -> list[str]:
    """Name the video files of a folder."""
    return sorted(path.name for path in root.iterdir() if path.is_file() and is_video_name(path.name))


def _clips(folder: Path) -> list[Path]:
    """Find the clips of a class folder.

    Raises:
      ValueError: frames that are in no folder of their own.
    """
    if loose := frame_files(folder):
        raise ValueError(f"{folder} must have a folder for the frames of each clip, got {loose[0].name}")
    found = [folder / name for name in _loose(folder)] + list(folders_in(folder).values())
    return sorted(found, key=lambda path: normal(path.name))
