"""Sentences made of recordings of words: several of one speaker, one after another, with gaps between them.

Axes: T samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from flax_transformer.data.audio.decode import Waveform
from flax_transformer.data.audio.open import AudioData, SpeechData, has_json_lines
from flax_transformer.data.audio.recording import AudioSet, Recordings, load_audio
from flax_transformer.data.identity import digest
from flax_transformer.frozen import frozen

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@frozen
class SpokenStringConfig:
    """How words make a sentence."""

    least: int = 1
    """Words of a sentence."""
    most: int = 5
    """Words of the longest sentence."""
    shortest: float = 0.0
    """Seconds of silence between words, before the first and after the last."""
    longest: float = 0.2
    """Seconds of the longest silence."""
    seconds: float = 4.0
    """Of a sentence at most: words that would make it longer are left out, but not the first."""

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most or not 0 <= self.shortest <= self.longest:
            raise ValueError(
                "a sentence must have at least 1 word and gaps that are not negative, the least first, got "
                f"{self.least} to {self.most} words and {self.shortest} to {self.longest} seconds"
            )


@dataclass(frozen=True, eq=False)
class SpokenStrings(Sequence[Any]):
    """Sentence i for every i below a size, a pure function of the recordings, the seed and i."""

    recordings: Recordings
    """Held, with a `label`, a number of `words`, and a `speaker` each."""
    words: tuple[str, ...]
    how: SpokenStringConfig
    size: int
    seed: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Make one: `sound`, its `text`, and `name`, which says of which recordings it is made."""
        chosen, gaps = self._plan(range(self.size)[index])
        sounds = self.recordings.sounds
        parts = [np.zeros(gaps[0], np.float32)]
        for number, gap in zip(chosen, gaps[1:], strict=True):
            parts += [sounds[number].samples, np.zeros(gap, np.float32)]
        name = " + ".join(sounds.name(number).rpartition("/")[2] for number in chosen)
        return {"sound": Waveform(np.concatenate(parts), sounds.rate), "text": self._text(chosen), "name": name}

    @property
    def rate(self) -> int:
        """Samples a second."""
        return self.recordings.sounds.rate

    @cached_property
    def texts(self) -> list[str]:
        """Return texts to learn a vocabulary by: of the first sentences, and the longest there may be."""
        longest = max(self.words, key=len)
        return [
            *(self._text(self._plan(i)[0]) for i in range(min(self.size, 1000))),
            " ".join([longest] * self.how.most),
        ]

    def _plan(self, index: int) -> tuple[list[int], list[int]]:
        """Choose the recordings of a sentence, and the samples of silence around them."""
        rng = np.random.default_rng((self.seed, index))
        said = self._spoken[rng.choice(sorted(self._spoken))]
        labels = rng.choice(sorted(said), rng.integers(self.how.least, self.how.most + 1)).tolist()
        chosen = [int(rng.choice(said[label])) for label in labels]
        gaps = (rng.uniform(self.how.shortest, self.how.longest, len(chosen) + 1) * self.rate).astype(int)
        ends = gaps[0] + np.cumsum([self.recordings.sounds.size(number)[0] for number in chosen] + gaps[1:])
        count = max(int(np.sum(ends <= self.how.seconds * self.rate)), 1)
        return chosen[:count], gaps[: count + 1].tolist()

    def _text(self, chosen: Sequence[int]) -> str:
        return " ".join(self.words[label] for label in self.recordings.known["label"][list(chosen)])

    @cached_property
    def fingerprint(self) -> str:
        """Name the recordings and how sentences are made of them."""
        return digest(self.recordings.fingerprint, repr((self.words, self.how, self.size, self.seed)))

    @cached_property
    def _spoken(self) -> dict[str, dict[int, np.ndarray]]:
        """Find the recordings of each speaker by their words."""
        who, labels = self.recordings.known["speaker"], self.recordings.known["label"]
        return {
            str(speaker): {
                int(label): np.flatnonzero((who == speaker) & (labels == label))
                for label in np.unique(labels[who == speaker])
            }
            for speaker in np.unique(who)
        }


@frozen
class SpokenStringData(AudioData):
    """What is said in sounds, as JSON lines of the folder tell (`SpeechData`); where there are none, sentences of
    words, always the same ones of a seed, made of recordings whose names say who speaks.

    Those of validation and test are made of recordings that no training sentence has. A digit is written as its word.
    """

    how: SpokenStringConfig = SpokenStringConfig()
    """How long sentences are."""
    train: int = 50_000
    """Sentences to train on."""
    held_out: int = 300
    """Sentences of validation, and as many of test."""
    string_seed: int = 0
    """Which sentences these are."""
    spelled: bool = True
    """Whether a digit is written as its word; else as its figure."""

    def open(self) -> AudioSet:
        """Open the sounds that lines tell of, or hold recordings in memory.

        Raises:
          ValueError: what `SpeechData` or `AudioData` refuses, recordings without speakers, or one that is damaged.
        """
        if has_json_lines(self.root):
            return SpeechData(root=self.root, holdout=self.holdout, split_seed=self.split_seed).open()
        found = super().open()
        first = found.splits["train"]
        if "speaker" not in first.known:
            raise ValueError(
                f"sentences are made of recordings whose names say who speaks, as 3_theo_12.wav, those of {self.root} "
                "lie in class folders"
            )
        rate = first.sounds.size(0)[1]
        spelled = dict(zip(map(str, range(10)), WORDS, strict=True)) if self.spelled else {}
        words = tuple(spelled.get(name, name) for name in found.classes)
        splits = {
            split: SpokenStrings(
                load_audio(recordings, rate), words, self.how, self.train if split == "train" else self.held_out,
                seed=3 * self.string_seed + number,
            )
            for number, (split, recordings) in enumerate(found.splits.items())
        }  # fmt: skip
        return AudioSet("texts", splits)
