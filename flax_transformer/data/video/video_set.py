"""Videos of one split with their classes: frames that follow each other, read when they are asked for.

Video files are decoded by PyAV where it is installed. A file is read from its beginning up to the last frame that is
asked for: to seek finds other frames than to count does.

Axes: B videos, I frames, H W height and width in pixels, C channels.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int, UInt8

from flax_transformer.data.folder import NamedFiles
from flax_transformer.data.identity import digest
from flax_transformer.data.image.decode import decode_image, image_size, is_image_name
from flax_transformer.data.split import normal
from flax_transformer.data.table import Names, Table


@runtime_checkable
class Videos(Protocol):
    """Videos by number."""

    @property
    def fingerprint(self) -> str:
        """Name which videos they are."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> "Frames":
        """Return the frames of a video, to be read."""
        ...

    def read(self, index: int, frames: Sequence[int]) -> list[Any]:
        """Decode some frames of a video to Pillow's images, by their numbers, which do not fall."""
        ...

    def name(self, index: int) -> str:
        """Return where a video comes from."""
        ...

    def size(self, index: int) -> tuple[int, int, int]:
        """Return the frames, the height and the width of a video."""
        ...

    def take(self, indices: Int[np.ndarray, "_"]) -> "Videos":
        """Pick some."""
        ...


@dataclass(frozen=True, eq=False)
class InMemoryVideos:
    """Videos that are held in memory, all of one size."""

    pixels: UInt8[np.ndarray, "B I H W C"]
    origin: str = "videos in memory"

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> "Frames":
        return Frames(self, index)

    def read(self, index: int, frames: Sequence[int]) -> list[Any]:
        """Return some frames of a video."""
        import PIL.Image

        return [PIL.Image.fromarray(self.pixels[index, frame]) for frame in frames]

    @cached_property
    def fingerprint(self) -> str:
        """Name which videos they are: by all their values."""
        return digest(str(self.pixels.shape), self.pixels)

    def name(self, index: int) -> str:
        """Return where a video comes from."""
        return f"{self.origin}, number {index}"

    def size(self, index: int) -> tuple[int, int, int]:
        """Return the frames, the height and the width, which all share."""
        return self.pixels.shape[1:4]

    def take(self, indices: Int[np.ndarray, "_"]) -> "InMemoryVideos":
        """Pick some."""
        return InMemoryVideos(self.pixels[indices], self.origin)


@dataclass(frozen=True, eq=False)
class VideoFiles(NamedFiles):
    """Videos that lie in a folder: folders of frames, which are images in the order of their names, or video files."""

    def __getitem__(self, index: int) -> "Frames":
        return Frames(self, index)

    def read(self, index: int, frames: Sequence[int]) -> list[Any]:
        """Decode some frames of a video; errors as `decode_image` and `decode_frames`."""
        path = self.root / self.names[index]
        if path.is_dir():
            files = frame_files(path)
            return [decode_image(files[frame]) for frame in frames]
        return decode_frames(path, frames)

    def files(self, path: Path) -> Sequence[Path]:
        """List the frames of a video, or its one file."""
        return frame_files(path) if path.is_dir() else [path]

    def size(self, index: int) -> tuple[int, int, int]:
        """Return the frames, the height and the width of a video, from headers alone.

        Raises:
          ValueError: no frames, or frames of several sizes; names the video, or a frame of each size.
        """
        path = self.root / self.names[index]
        return folder_size(path) if path.is_dir() else video_size(path)


def labelled_videos(videos: Videos, labels: Int[np.ndarray, " B"]) -> Table:
    """Put videos, the numbers of their classes and their names in a table: `frames`, to be read, `label`, `name`."""
    return Table({"frames": videos, "label": labels, "name": Names(videos)})


@dataclass(frozen=True, eq=False)
class Frames:
    """The frames of one video, not yet read."""

    videos: Videos
    index: int

    def __len__(self) -> int:
        return self.videos.size(self.index)[0]

    def read(self, numbers: Sequence[int]) -> list[Any]:
        """Decode some."""
        return self.videos.read(self.index, numbers)


def frame_files(folder: Path) -> list[Path]:
    """List the images of a video, by their names: as numbers where they all are."""
    found = [path for path in folder.iterdir() if is_image_name(path.name) and not path.name.startswith((".", "__"))]
    numbers = all(path.stem.isascii() and path.stem.isdigit() for path in found)
    return sorted(found, key=lambda path: (int(path.stem) if numbers else 0, normal(path.name)))


def folder_size(folder: Path) -> tuple[int, int, int]:
    """Return the frames, the height and the width of a folder of frames.

    Raises:
      ValueError: no frames, a damaged one, or frames of several sizes; names the file.
    """
    files = frame_files(folder)
    if not files:
        raise ValueError(f"{folder} must have frames, as every video, got none")
    first = image_size(files[0])
    for file in files[1:]:
        if (size := image_size(file)) != first:
            one, two = (f"{width} × {height}" for width, height in (first, size))
            raise ValueError(f"the frames of a video must have one size: {files[0]} has {one}, {file} {two}")
    return len(files), first[1], first[0]


SUFFIXES = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".ogv", ".wmv", ".flv", ".3gp")
"""Of video files, in any case."""


def is_video_name(name: str) -> bool:
    """Whether a file of this name is taken for a video, by its suffix."""
    return os.path.splitext(name)[1].lower() in SUFFIXES


def video_size(path: str | os.PathLike) -> tuple[int, int, int]:
    """Return the frames, the height and the width of a video; one whose header does not count its frames is decoded.

    Raises:
      FileNotFoundError: no such file.
      ValueError: PyAV is missing, a damaged file, or one without frames; names it.
    """
    with _opened(path) as (container, stream):
        count = stream.frames or sum(1 for _ in container.decode(stream))
        if not count:
            raise ValueError(f"{os.fspath(path)} must have frames, as every video, got none")
        return count, stream.codec_context.height, stream.codec_context.width


def decode_frames(path: str | os.PathLike, numbers: Sequence[int]) -> list[Any]:
    """Decode some frames to Pillow's RGB, by their numbers, which do not fall.

    Raises:
      FileNotFoundError: no such file.
      ValueError: PyAV is missing, a damaged file, or one that has fewer frames; names it.
    """
    found: list[Any] = []
    with _opened(path) as (container, stream):
        wanted = list(numbers)
        for number, frame in enumerate(container.decode(stream)):
            while len(found) < len(wanted) and wanted[len(found)] == number:
                found.append(frame.to_image())
            if len(found) == len(wanted):
                return found
    raise ValueError(f"{os.fspath(path)} must have a frame {wanted[len(found)]}, it ends before: it may be damaged")


@contextmanager
def _opened(path: str | os.PathLike) -> Iterator[tuple[Any, Any]]:
    try:
        import av
    except ImportError as error:
        raise ValueError(
            f"to read the video {os.fspath(path)} takes PyAV: pip install flax-transformer[video], or give a folder of "
            "frames"
        ) from error
    if not Path(path).is_file():
        raise FileNotFoundError(f"{os.fspath(path)} must be a video, there is none")
    try:
        with av.open(os.fspath(path)) as container:
            if not container.streams.video:
                raise ValueError(f"{os.fspath(path)} must be a video, it has no images")
            yield container, container.streams.video[0]
    except av.error.FFmpegError as error:
        raise ValueError(f"{os.fspath(path)} is a damaged video, or none: {error}") from error
