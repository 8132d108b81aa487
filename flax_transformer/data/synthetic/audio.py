"""Generated audio: telephone tones of digits, and sentences made of recordings of words, one after another with gaps.

Axes: T samples.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from flax_transformer.data.audio.decode import Waveform
from flax_transformer.data.audio.open import (
    AUDIO_FILES,
    SpeechData,
    _names,
    _tested,
    has_json_lines,
    read_labels,
    read_names,
)
from flax_transformer.data.audio.recording import AudioFiles, InMemoryAudio, Recordings, load_audio
from flax_transformer.data.folder import folders_of, open_folders
from flax_transformer.data.identity import digest
from flax_transformer.data.split import complete_splits
from flax_transformer.data.table import DataSet
from flax_transformer.frozen import frozen

LOW, HIGH = (697, 770, 852, 941), (1209, 1336, 1477)
"""Hz of a key's row and of its column (ITU-T Q.23)."""


KEYS = "147*2580369#"
"""Down the columns."""


DIGITS = tuple(map(str, range(10)))


@frozen
class TouchTones:
    """Recordings of the ten digits, always the same of a seed: every voice is a little higher or lower and
    longer or shorter than others, every recording is noisy."""

    voices: int = 4
    takes: int = 25
    """Recordings of each digit by each voice, of which 0 to 4 are the test's."""
    rate: int = 8_000
    """Samples a second."""
    noise: float = 0.5
    """Standard deviation of what is added, of the tones' own."""
    tone_seed: int = 0
    """Which recordings these are."""

    def __post_init__(self) -> None:
        if self.voices < 1 or self.takes < 7 or self.rate < 4_000 or self.noise < 0 or self.tone_seed < 0:
            raise ValueError(
                "tones have at least 1 voice, 7 takes, 4000 samples a second, and no negative noise or seed, got "
                f"{self.voices}, {self.takes}, {self.rate}, {self.noise}, {self.tone_seed}"
            )

    def recordings(self) -> Recordings:
        """Make all: `label`, `speaker` and `take` of each are known."""
        every = [(v, d, t) for v in range(self.voices) for d in range(10) for t in range(self.takes)]
        voices, digits, takes = np.array(every).T
        samples = [self.waveform(*each) for each in every]
        names = [f"tones of {digit} by voice {voice}, number {take}" for voice, digit, take in every]
        known = {"label": digits.astype(np.int32), "speaker": voices.astype(str), "take": takes}
        return Recordings.of(InMemoryAudio(samples, self.rate, names), **known)

    def waveform(self, voice: int, digit: int, take: int) -> Float[np.ndarray, "T"]:
        """Make one recording."""
        person = np.random.default_rng((self.tone_seed, voice))
        pitch, seconds = person.uniform(0.99, 1.01), person.uniform(0.2, 0.5)  # keys are a tenth apart
        rng = np.random.default_rng((self.tone_seed, voice, digit, take))
        times = np.arange(int(self.rate * seconds * rng.uniform(0.8, 1.2))) / self.rate
        column, row = divmod(KEYS.index(str(digit)), 4)
        waves = [np.sin(2 * np.pi * (hertz * pitch * times + rng.random())) for hertz in (LOW[row], HIGH[column])]
        loud = np.hanning(len(times) + 2)[1:-1] * rng.uniform(0.1, 0.4)
        noise = rng.normal(0, self.noise * loud.mean(), len(times))
        return (loud * sum(waves) / 2 + noise).astype(np.float32)


@frozen
class AudioData:
    """Recordings with classes: of a folder, or generated where no folder is named.

    The folder has class folders, perhaps within `train`, `validation` and `test`; or recordings named as the free
    spoken digits, `{class}_{speaker}_{number}.wav`, of which numbers 0 to 4 are the test's; or files and JSON lines of
    `{"audio": "…", "label": "…"}`, a file for each split or one of which a part is held out.
    """

    root: str = ""
    """Folder of recordings; empty: tones are generated."""
    holdout: float = 0.1
    """Share of the training recordings, of each class, for each of validation and test that there is not."""
    split_seed: int = 0
    """Which recordings these are."""
    tones: TouchTones = field(default_factory=TouchTones)
    """Which ones are generated."""

    def open(self) -> DataSet:
        """Open the recordings without decoding them, and hold out a part.

        Raises:
          FileNotFoundError: no such folder.
          ValueError: no recordings, one class, names that say nothing, splits of unequal classes.
        """
        splits, classes = self.found()
        splits = complete_splits(
            splits, _names, lambda each: each["label"], share=self.holdout, seed=self.split_seed,
            where=self.root or "tones", what="recordings",
        )  # fmt: skip
        return DataSet(splits, classes)

    def found(self) -> tuple[Mapping[str, Recordings], tuple[str, ...]]:
        """Find the splits that there are, and the classes."""
        if not self.root:
            return _tested(self.tones.recordings(), "tones"), DIGITS
        root = Path(self.root).expanduser()
        if not root.is_dir():
            raise FileNotFoundError(f"{root} must be a folder of recordings, there is none")
        if has_json_lines(str(root)):
            return read_labels(root)
        while not AUDIO_FILES.files(root) and len(below := folders_of(root)) == 1:  # as an unpacked archive has it
            (root,) = below.values()
        if (named := AUDIO_FILES.files(root)) and not folders_of(root):
            return read_names(root, named)
        files, classes = open_folders(root, AUDIO_FILES)
        found = {
            split: Recordings.of(AudioFiles(each.root, each.names), label=each.labels) for split, each in files.items()
        }
        if len(classes) < 2:
            raise ValueError(f"{root} must have recordings of at least two classes, got {', '.join(classes)}")
        return found, classes


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
        """Make one: `waveform`, its `text`, and `name`, which says of which recordings it is made."""
        chosen, gaps = self._plan(range(self.size)[index])
        files = self.recordings["audio"]
        parts = [np.zeros(gaps[0], np.float32)]
        for number, gap in zip(chosen, gaps[1:], strict=True):
            parts += [files[number].samples, np.zeros(gap, np.float32)]
        name = " + ".join(files.name(number).rpartition("/")[2] for number in chosen)
        return {"audio": Waveform(np.concatenate(parts), files.rate), "text": self._text(chosen), "name": name}

    @property
    def rate(self) -> int:
        """Samples a second."""
        return self.recordings["audio"].rate

    @cached_property
    def texts(self) -> list[str]:
        """Return texts to learn a vocabulary by: of the first sentences, and the longest there may be."""
        longest = max(self.words, key=len)
        return [
            *(self._text(self._plan(i)[0]) for i in range(min(self.size, 1000))),
            " ".join([longest] * self.how.most),
        ]

    def respelled(self, change: Callable[[str], str]) -> "SpokenStrings":
        """Write the words in another way, such as `str.upper`."""
        return replace(self, words=tuple(map(change, self.words)))

    def _plan(self, index: int) -> tuple[list[int], list[int]]:
        """Choose the recordings of a sentence, and the samples of silence around them."""
        rng = np.random.default_rng((self.seed, index))
        said = self._spoken[rng.choice(sorted(self._spoken))]
        labels = rng.choice(sorted(said), rng.integers(self.how.least, self.how.most + 1)).tolist()
        chosen = [int(rng.choice(said[label])) for label in labels]
        gaps = (rng.uniform(self.how.shortest, self.how.longest, len(chosen) + 1) * self.rate).astype(int)
        ends = gaps[0] + np.cumsum([self.recordings["audio"].size(number)[0] for number in chosen] + gaps[1:])
        count = max(int(np.sum(ends <= self.how.seconds * self.rate)), 1)
        return chosen[:count], gaps[: count + 1].tolist()

    def _text(self, chosen: Sequence[int]) -> str:
        return " ".join(self.words[label] for label in self.recordings["label"][list(chosen)])

    @cached_property
    def fingerprint(self) -> str:
        """Name the recordings and how sentences are made of them."""
        return digest(self.recordings.fingerprint, repr((self.words, self.how, self.size, self.seed)))

    @cached_property
    def _spoken(self) -> dict[str, dict[int, np.ndarray]]:
        """Find the recordings of each speaker by their words."""
        who, labels = self.recordings["speaker"], self.recordings["label"]
        return {
            str(speaker): {
                int(label): np.flatnonzero((who == speaker) & (labels == label))
                for label in np.unique(labels[who == speaker])
            }
            for speaker in np.unique(who)
        }


@frozen
class SpokenStringData(AudioData):
    """What is said in recordings, as JSON lines of the folder tell (`SpeechData`); where there are none, sentences of
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

    def open(self) -> DataSet:
        """Open the recordings that lines tell of, or hold recordings in memory.

        Raises:
          ValueError: what `SpeechData` or `AudioData` refuses, recordings without speakers, or one that is damaged.
        """
        if has_json_lines(self.root):
            return SpeechData(root=self.root, holdout=self.holdout, split_seed=self.split_seed).open()
        found = super().open()
        first = found.splits["train"]
        if "speaker" not in first.columns:
            raise ValueError(
                f"sentences are made of recordings whose names say who speaks, as 3_theo_12.wav, those of {self.root} "
                "lie in class folders"
            )
        rate = first.rate
        spelled = dict(zip(map(str, range(10)), WORDS, strict=True)) if self.spelled else {}
        words = tuple(spelled.get(name, name) for name in found.classes)
        splits = {
            split: SpokenStrings(
                load_audio(recordings, rate), words, self.how, self.train if split == "train" else self.held_out,
                seed=3 * self.string_seed + number,
            )
            for number, (split, recordings) in enumerate(found.splits.items())
        }  # fmt: skip
        return DataSet(splits, kind="texts")
