"""Files of audio as samples between -1 and 1 and their rate.

WAV files of whole numbers are read by Python itself; FLAC, OGG, MP3 and others by the `soundfile` library, where it is
installed (`pip install "flax-transformer[audio]"`).

Axes: T samples, C channels.
"""

import contextlib
import io
import os
import wave
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

SUFFIXES = (".wav", ".wave", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff")
"""Of files that are taken for recordings."""


STREAMED = 2**28
"""Samples from which on the header of a WAV file does not count them: who wrote it did not know where it would end."""


class Waveform(NamedTuple):
    """One recording, of one channel."""

    samples: Float[np.ndarray, "T"]
    """Float32, between -1 and 1."""
    rate: int
    """Samples a second."""


def decode_audio(source: str | os.PathLike | bytes) -> Waveform:
    """Read a recording; of several channels the mean is taken.

    Args:
      source: a file, or its content.

    Raises:
      FileNotFoundError: no such file.
      ValueError: what is no recording, or takes a library that is not there.
    """
    with _opened(source) as (name, file):
        try:
            with wave.open(file) as read:
                rate, channels, width = read.getframerate(), read.getnchannels(), read.getsampwidth()
                content, length = read.readframes(read.getnframes()), read.getnframes()
                samples = decode_pcm(content, width).reshape(-1, channels)
        except (wave.Error, EOFError, RuntimeError, ValueError) as error:
            samples, rate = _with_soundfile("read", file, name, error, dtype="float32", always_2d=True)
            length = len(samples)
    if len(samples) < length < STREAMED:
        raise ValueError(f"{name} must have the {length:,} samples that it says, it has {len(samples):,}")
    try:
        return Waveform(mono(samples), rate)
    except ValueError as error:
        if isinstance(source, bytes):
            raise
        raise ValueError(f"{name}: {error}") from error


def audio_size(source: str | os.PathLike | bytes) -> tuple[int, int]:
    """Read how many samples a recording has, of each channel, and their rate, from its header alone.

    Raises:
      FileNotFoundError: no such file.
      ValueError: what is no recording, has no samples, or takes a library that is not there.
    """
    with _opened(source) as (name, file):
        try:
            with wave.open(file) as read:
                length, rate = read.getnframes(), read.getframerate()
        except (wave.Error, EOFError, RuntimeError) as error:
            found = _with_soundfile("info", file, name, error)
            length, rate = found.frames, found.samplerate
    if not length:
        raise ValueError(f"{name} must have samples, it has none")
    return length, rate


def is_audio_name(name: str) -> bool:
    """Whether a file of this name is taken for a recording, by its suffix in any case."""
    return os.path.splitext(name)[1].lower() in SUFFIXES


@contextlib.contextmanager
def _opened(source: str | os.PathLike | bytes) -> Iterator[tuple[str, io.BufferedIOBase]]:
    """Return what messages call a recording, and its content."""
    if isinstance(source, bytes):
        yield "a recording", io.BytesIO(source)
        return
    name = os.fspath(source)
    with open(name, "rb") as file:
        if not file.read(1):
            raise ValueError(f"{name} must be a recording, it is empty")
        file.seek(0)
        yield name, file


def decode_pcm(content: bytes, width: int) -> Float[np.ndarray, "T"]:
    """Turn samples of 1, 2, 3 or 4 bytes, as a WAV file has them, into numbers between -1 and 1.

    >>> decode_pcm(b"\\x00\\x40\\x00\\x80", 2).tolist()
    [0.5, -1.0]
    """
    if width == 1:  # without a sign
        return (np.frombuffer(content, np.uint8).astype(np.float32) - 128) / 128
    count = len(content) // width
    high = np.zeros((count, 4), np.uint8)  # into the high bytes of 32 bits
    high[:, 4 - width :] = np.frombuffer(content[: count * width], np.uint8).reshape(count, width)
    return (high.reshape(-1).view("<i4") / 2**31).astype(np.float32)


def mono(samples: Shaped[np.ndarray, "..."]) -> Float[np.ndarray, "T"]:
    """Return samples of one channel as float32.

    Args:
      samples: [T], or of several channels, whose axis is the shorter one; whole numbers stand for -1 to 1 by type.

    Raises:
      ValueError: no samples, more than two axes, or what is no finite number.

    >>> mono(np.array([[16384, 0], [-32768, -32768], [0, 0]], np.int16)).tolist()
    [0.25, -1.0, 0.0]
    """
    if samples.ndim not in (1, 2) or not samples.size or samples.dtype.kind not in "fiu":
        raise ValueError(f"a recording must be samples [T] or [T, C], got {samples.dtype} of shape {samples.shape}")
    if samples.dtype.kind in "iu":
        if samples.dtype.itemsize == 8:
            raise ValueError(
                f"whole numbers are samples of 8, 16 or 32 bits, by whose range they are scaled, got {samples.dtype}; "
                "samples.astype(np.int16) are those of 16 bits"
            )
        half = 2.0 ** (8 * samples.dtype.itemsize - 1)
        samples = (samples.astype(np.float64) - half * (samples.dtype.kind == "u")) / half
    if samples.ndim == 2:
        samples = samples.mean(axis=int(samples.shape[1] <= samples.shape[0]), dtype=np.float64)
    if not np.isfinite(samples).all():
        raise ValueError("samples of a recording must be finite numbers, got some that are not")
    return samples.astype(np.float32)


def _with_soundfile(what: str, file: io.BufferedIOBase, name: str, error: Exception, **options: Any) -> Any:
    """Call the library on a file that Python itself cannot read, for a reason that is given."""
    try:
        import soundfile
    except ImportError:
        raise ValueError(
            f"{name} is no WAV file of whole numbers ({error}); other files take `pip install flax-transformer[audio]`"
        ) from error
    file.seek(0)
    try:
        return getattr(soundfile, what)(file, **options)
    except (RuntimeError, TypeError, ValueError) as why:
        raise ValueError(f"{name} is no recording that can be read: {why}") from why
