"""Frames of video files, decoded by PyAV where it is installed.

A file is read from its beginning up to the last frame that is asked for: to seek finds other frames than to count does.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
            raise ValueError(f"{os.fspath(path)} must have frames, as every clip, got none")
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
