"""Clips of one split with their classes: frames that follow each other, read when they are asked for.

Axes: B clips, I frames, H W height and width in pixels, C channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int, UInt8

from flax_transformer.data.identity import digest
from flax_transformer.data.image.decode import decode_image, image_size, is_image_name
from flax_transformer.data.split import normal
from flax_transformer.data.video.decode import decode_frames, video_size


@runtime_checkable
class Clips(Protocol):
    """Clips by number."""

    @property
    def fingerprint(self) -> str:
        """Name which clips they are."""
        ...

    def __len__(self) -> int: ...

    def read(self, index: int, frames: Sequence[int]) -> list[Any]:
        """Decode some frames of a clip to Pillow's pictures, by their numbers, which do not fall."""
        ...

    def name(self, index: int) -> str:
        """Say where a clip comes from."""
        ...

    def size(self, index: int) -> tuple[int, int, int]:
        """Give the frames, the height and the width of a clip."""
        ...

    def take(self, indices: Int[np.ndarray, "_"]) -> "Clips":
        """Pick some."""
        ...


@dataclass(frozen=True, eq=False)
class HeldClips:
    """Clips that are held in memory, all of one size."""

    pixels: UInt8[np.ndarray, "B I H W C"]
    origin: str = "clips in memory"

    def __len__(self) -> int:
        return len(self.pixels)

    def read(self, index: int, frames: Sequence[int]) -> list[Any]:
        """Give some frames of a clip."""
        import PIL.Image

        return [PIL.Image.fromarray(self.pixels[index, frame]) for frame in frames]

    @cached_property
    def fingerprint(self) -> str:
        """Name which clips they are: by all their values."""
        return digest(str(self.pixels.shape), self.pixels)

    def name(self, index: int) -> str:
        """Say where a clip comes from."""
        return f"{self.origin}, number {index}"

    def size(self, index: int) -> tuple[int, int, int]:
        """Give the frames, the height and the width, which all share."""
        return self.pixels.shape[1:4]

    def take(self, indices: Int[np.ndarray, "_"]) -> "HeldClips":
        """Pick some."""
        return HeldClips(self.pixels[indices], self.origin)


@dataclass(frozen=True, eq=False)
class ClipFiles:
    """Clips that lie in a folder: folders of frames, which are pictures in the order of their names, or video files."""

    root: Path
    names: Sequence[str]
    """Paths below the folder."""

    def __len__(self) -> int:
        return len(self.names)

    def read(self, index: int, frames: Sequence[int]) -> list[Any]:
        """Decode some frames of a clip; errors as `decode_image` and `decode_frames`."""
        path = self.root / self.names[index]
        if path.is_dir():
            files = frame_files(path)
            return [decode_image(files[frame]) for frame in frames]
        return decode_frames(path, frames)

    @cached_property
    def fingerprint(self) -> str:
        """Name which clips they are: by the paths of their files and how many bytes each has."""
        paths = (self.root / name for name in self.names)
        files = (file for path in paths for file in (frame_files(path) if path.is_dir() else [path]))
        return digest(*(f"{file.relative_to(self.root).as_posix()} {file.stat().st_size}\n" for file in files))

    def name(self, index: int) -> str:
        """Say where a clip comes from."""
        return str(self.root / self.names[index])

    def size(self, index: int) -> tuple[int, int, int]:
        """Give the frames, the height and the width of a clip, from headers alone.

        Raises:
          ValueError: no frames, or frames of several sizes; names the clip, or a frame of each size.
        """
        path = self.root / self.names[index]
        return folder_size(path) if path.is_dir() else video_size(path)

    def take(self, indices: Int[np.ndarray, "_"]) -> "ClipFiles":
        """Pick some."""
        return ClipFiles(self.root, [self.names[index] for index in indices])


@dataclass(frozen=True, eq=False)
class LabelledClips(Sequence[Any]):
    """Clips and the numbers of their classes."""

    clips: Clips
    labels: Int[np.ndarray, " B"]

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Give one: its `frames`, to be read, `label`, and `name`, where it comes from."""
        name = self.clips.name(index)
        return {"frames": Frames(self.clips, index), "label": int(self.labels[index]), "name": name}

    @property
    def fingerprint(self) -> str:
        """Name which clips and classes they are."""
        return digest(self.clips.fingerprint, self.labels.astype(np.int64))

    def take(self, indices: Int[np.ndarray, "_"]) -> "LabelledClips":
        """Pick some."""
        return LabelledClips(self.clips.take(indices), self.labels[indices])


@dataclass(frozen=True, eq=False)
class Frames:
    """The frames of one clip, not yet read."""

    clips: Clips
    index: int

    def __len__(self) -> int:
        return self.clips.size(self.index)[0]

    def read(self, numbers: Sequence[int]) -> list[Any]:
        """Decode some."""
        return self.clips.read(self.index, numbers)


def frame_files(folder: Path) -> list[Path]:
    """List the pictures of a clip, by their names: as numbers where they all are."""
    found = [path for path in folder.iterdir() if is_image_name(path.name) and not path.name.startswith((".", "__"))]
    numbers = all(path.stem.isascii() and path.stem.isdigit() for path in found)
    return sorted(found, key=lambda path: (int(path.stem) if numbers else 0, normal(path.name)))


def folder_size(folder: Path) -> tuple[int, int, int]:
    """Give the frames, the height and the width of a folder of frames.

    Raises:
      ValueError: no frames, a damaged one, or frames of several sizes; names the file.
    """
    files = frame_files(folder)
    if not files:
        raise ValueError(f"{folder} must have frames, as every clip, got none")
    first = image_size(files[0])
    for file in files[1:]:
        if (size := image_size(file)) != first:
            one, two = (f"{width} × {height}" for width, height in (first, size))
            raise ValueError(f"the frames of a clip must have one size: {files[0]} has {one}, {file} {two}")
    return len(files), first[1], first[0]
