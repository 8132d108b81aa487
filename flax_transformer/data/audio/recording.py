"""Recordings of one split with what is known of each: a class, a text, who speaks; and where they lie.

Axes: B recordings, T samples.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int, Shaped

from flax_transformer.data.audio.decode import Waveform, audio_size, decode_audio
from flax_transformer.data.audio.spectrum import resample
from flax_transformer.data.folder import NamedFiles
from flax_transformer.data.identity import digest
from flax_transformer.data.table import Names, Table

THREADS = 4
"""Threads that decode recordings."""


@runtime_checkable
class AudioSource(Protocol):
    """Recordings by number, decoded when they are asked for."""

    @property
    def fingerprint(self) -> str:
        """Name which recordings they are."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Waveform:
        """Decode a recording."""
        ...

    def name(self, index: int) -> str:
        """Return where a recording comes from."""
        ...

    def size(self, index: int) -> tuple[int, int]:
        """Return the samples of a recording and their rate without decoding it."""
        ...

    def take(self, indices: Int[np.ndarray, "_"]) -> "AudioSource":
        """Pick some."""
        ...


@dataclass(frozen=True, eq=False)
class AudioFiles(NamedFiles):
    """Recordings that are files of a folder."""

    def __getitem__(self, index: int) -> Waveform:
        waveform, (length, rate) = decode_audio(self.root / self.names[index]), self.size(index)
        if len(waveform.samples) < length:
            raise ValueError(
                f"{self.name(index)} must have the {length:,} samples that it says, at {rate:,} Hz, it has "
                f"{len(waveform.samples):,}"
            )
        return waveform

    def size(self, index: int) -> tuple[int, int]:
        """Return the samples of a recording and their rate, from its header."""
        return audio_size(self.root / self.names[index])


@dataclass(frozen=True, eq=False)
class InMemoryAudio:
    """Recordings that are held in memory, all at one rate."""

    samples: Sequence[Float[np.ndarray, "_"]]
    rate: int
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Waveform:
        return Waveform(self.samples[index], self.rate)

    @cached_property
    def fingerprint(self) -> str:
        """Name which recordings they are: by all their samples."""
        return digest(str(self.rate), str([len(each) for each in self.samples]), *self.samples)

    def name(self, index: int) -> str:
        """Return where a recording comes from."""
        return self.names[index]

    def size(self, index: int) -> tuple[int, int]:
        """Return the samples of a recording and their rate."""
        return len(self.samples[index]), self.rate

    def take(self, indices: Int[np.ndarray, "_"]) -> "InMemoryAudio":
        """Pick some."""
        return InMemoryAudio(
            [self.samples[index] for index in indices], self.rate, [self.names[index] for index in indices]
        )


@dataclass(frozen=True, eq=False)
class Recordings(Table):
    """Recordings and what is known of each: columns `audio`, `name`, and `label`, `text`, `speaker` or `take`."""

    @classmethod
    def of(cls, files: AudioSource, **known: Shaped[np.ndarray, " B"]) -> "Recordings":
        """Make it of recordings and the columns of what is known."""
        return cls({"audio": files, "name": Names(files), **known})

    @property
    def rate(self) -> int:
        """Samples a second, of the first recording."""
        return self["audio"].size(0)[1]

    @property
    def texts(self) -> list[str]:
        """Return what is said in each."""
        return self["text"].tolist()

    def respelled(self, change: Callable[[str], str]) -> "Recordings":
        """Write the texts in another way, such as `str.upper`."""
        return self.with_columns(text=np.array(list(map(change, self.texts))))


def load_audio(recordings: Recordings, rate: int) -> Recordings:
    """Decode all recordings once, resample them to a rate, and hold them in memory.

    Raises:
      ValueError: a recording that is damaged; names its file.
    """
    files = recordings["audio"]
    if isinstance(files, InMemoryAudio) and files.rate == rate:
        return recordings

    def read(index: int) -> np.ndarray:
        waveform = files[index]
        return resample(waveform.samples, waveform.rate, rate)

    with ThreadPoolExecutor(THREADS) as pool:
        try:
            samples = list(pool.map(read, range(len(files))))
        finally:
            pool.shutdown(cancel_futures=True)
    held = InMemoryAudio(samples, rate, [files.name(index) for index in range(len(files))])
    return recordings.with_columns(audio=held)
