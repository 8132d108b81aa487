"""Audio classification: examples of labelled audio, and `classify_audio`; what all tasks on audio share.

Axes: B recordings.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from flax_transformer.data import each_once, shuffled
from flax_transformer.data.audio import (
    Gain,
    MaskFrames,
    MaskSamples,
    Noise,
    Recordings,
    ResampleAudio,
    Shift,
    SpectrogramRows,
    Speed,
    Truncate,
    WaveformRows,
    load_audio,
    log_mel,
)
from flax_transformer.data.audio.decode import Waveform, decode_audio
from flax_transformer.data.examples import Collate, Example, Transform
from flax_transformer.data.label import check_classes
from flax_transformer.data.table import DataSet
from flax_transformer.frozen import frozen
from flax_transformer.hub import Pretrained
from flax_transformer.hub.processor.audio import AudioProcessor
from flax_transformer.report.audio_figure import spectrum_image
from flax_transformer.report.sample import save_audio, save_image
from flax_transformer.task.checkpoint import audio_processor_of, file_of, require_use
from flax_transformer.task.classification import Label, ShownLabels, ranked
from flax_transformer.task.held_out import HeldOut
from flax_transformer.task.image_input import named_classes
from flax_transformer.task.opened import Context, Opened, check_rows, stream
from flax_transformer.task.spec import Spec

READS = {"input_features": "spectra", "input_values": "samples"}
"""What a model hears, by the name of its input."""


HOP = 100
"""Frames of a spectrum a second."""


@frozen
class AudioAugment:
    """What is changed in training recordings at random; at 0 nothing is."""

    speed: float = 0.0
    """Share by which a recording is played faster or slower at most, its pitch with it."""
    shift: float = 0.0
    """Seconds of silence before a recording at most."""
    gain: float = 0.0
    """Decibels by which a recording is louder or quieter at most."""
    noise: float = 0.0
    """Standard deviation of white noise at most, of the recording's own."""
    times: int = 0
    """Stretches of time that are masked."""
    longest: float = 0.1
    """Seconds of one at most."""
    bands: int = 0
    """Bands of mel bins that are masked, where a model hears spectra."""
    widest: int = 8
    """Bins of one at most."""

    def __post_init__(self):
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if min(values.values()) < 0 or self.speed >= 1:
            raise ValueError(f"changes must not be negative, and of speed less than 1, got {values}")

    def samples(self, rate: int, length: int) -> tuple[Transform, ...]:
        """Return what changes the samples of a recording, which may have a length."""
        found: list[Transform] = [Speed(most=self.speed, length=length)] if self.speed else []
        found.append(Truncate(length=length))
        found += [Shift(most=round(self.shift * rate), length=length)] if self.shift else []
        found += [Gain(decibels=self.gain)] if self.gain else []
        return (*found, Noise(most=self.noise)) if self.noise else tuple(found)

    def silence(self, rate: int) -> tuple[Transform, ...]:
        """Return what silences stretches of samples."""
        return (MaskSamples(count=self.times, longest=round(self.longest * rate)),) if self.times else ()

    def frames(self) -> tuple[Transform, ...]:
        """Return what masks parts of a spectrum."""
        if not self.times and not self.bands:
            return ()
        longest = round(self.longest * HOP)
        return (MaskFrames(times=self.times, longest=longest, bands=self.bands, widest=self.widest),)


@dataclass(frozen=True, eq=False)
class Features:
    """Make a feature extractor's input of the samples of an example: `frames` [I, C], or `samples` as it has them."""

    processor: AudioProcessor

    @cached_property
    def fingerprint(self) -> str:
        """Name what is made."""
        return f"Features({dict(sorted(self.processor.options.items()))})"

    def __call__(self, example: Example, rng: np.random.Generator) -> dict[str, Any]:
        """Add `frames`, or change `samples`."""
        (made,) = self.processor(example["samples"])[self.processor.kind.name]
        return {**example, "samples": made} if made.ndim == 1 else {**example, "frames": made.T}


@frozen
class HeldAudio(HeldOut):
    """Held-out recordings, and how a model hears them."""

    processor: AudioProcessor

    what: ClassVar[str] = "recordings"

    def spectrum(self, example: Example) -> Float[np.ndarray, "C I"]:
        """Return what a model of spectra hears of an example; for a model of samples, its `drawn_spectrum`."""
        return example["frames"].T if "frames" in example else self.drawn_spectrum(example)

    def drawn_spectrum(self, example: Example) -> Float[np.ndarray, "C I"]:
        """Compute 64 mel bins of an example's samples, a hundred frames a second, whatever its rate."""
        rate = self.processor.rate
        samples = np.pad(example["samples"], (0, max(rate // HOP - len(example["samples"]), 0)))
        return log_mel(samples, bins=64, window=rate // 40, hop=rate // HOP, rate=rate)


@frozen
class AudioLabels(ShownLabels):
    """Classify the test recordings, which are `HeldAudio`."""

    takes: ClassVar[type] = HeldAudio

    def shown(self, root: Path, held: Any, index: int) -> dict[str, Any]:
        """Write the spectrum as the model hears it, and the recording."""
        example = held.example(index)
        image = save_image(root, str(index), spectrum_image(held.spectrum(example)))
        waveform = save_audio(root, str(index), example["samples"], held.processor.rate)
        return {"picture": image, "audio": waveform, "source": example["name"]}


@frozen
class AudioExamples:
    """What all examples of recordings have in common."""

    rows: int = 32
    """Recordings a batch."""
    seconds: int = 1
    """That a model hears at most; one that begins with a checkpoint of spectra hears the checkpoint's window."""
    rate: int | None = None
    """Samples a second that it hears; others are resampled. None: the checkpoint's that training begins with,
    or as the first training recording has."""
    augment: AudioAugment = AudioAugment()
    """What is changed in training recordings."""
    memory: int = 1024
    """MiB of recordings at most that are decoded once and held in memory; more are decoded when they are needed."""

    def __post_init__(self):
        check_rows(self.rows, self.seconds)
        if self.rate is not None and self.rate < 1000:
            raise ValueError(f"rate must be at least 1000 samples a second, got {self.rate}")

    def _settled(self, known: AudioProcessor | None, name: str, *makes: str) -> Any:
        """Take what a checkpoint's feature extractor says: the rate and, of spectra, the window.

        Args:
          known: what makes the checkpoint's inputs, None for a new model.
          name: of the checkpoint.
          makes: inputs that there is a use for.

        Raises:
          ValueError: another rate or input.
        """
        if known is None:
            return self
        if known.kind.name not in makes:
            hears = " or ".join(READS[each] for each in makes)
            raise ValueError(
                f"these examples are for a model that hears {hears}, {name} hears {READS[known.kind.name]}"
            )
        if self.rate not in (None, known.rate):
            raise ValueError(f"the checkpoint {name} hears {known.rate:,} samples a second, got rate={self.rate}")
        window = {"seconds": known.options["chunk_length"]} if known.kind.name == "input_features" else {}
        return replace(self, rate=known.rate, **window)

    def _opened(self, data: Any, kind: str, *, cut: bool) -> tuple[DataSet, int]:
        """Open data, check every recording, and say what is done to some; give them with the rate that is heard."""
        found = data.open()
        if found.kind != kind:
            raise ValueError(f"the recordings must have {kind}, they have {found.kind}")
        for split, audio in found.splits.items() if kind == "classes" else ():
            check_classes(audio["label"], found.classes, f"{split} recordings")
        counts = ", ".join(f"{len(audio):,} {split}" for split, audio in found.splits.items())
        print(f"recordings: {counts}" + (f"; {len(found.classes):,} classes" if found.classes else ""), flush=True)
        rate = self.rate or found.splits["train"].rate
        return prepared(found, rate, self.seconds, self.memory << 20, cut=cut), rate

    def _transforms(
        self, processor: AudioProcessor, spelled: tuple[Transform, ...] = ()
    ) -> tuple[tuple[Transform, ...], tuple[Transform, ...]]:
        """Return what makes training examples, and what makes held-out ones."""
        rate, length = processor.rate, self.seconds * processor.rate
        frames = processor.kind.name == "input_features"
        fixed = (Features(processor), *spelled)
        change, mask = self.augment.samples(rate, length), self.augment.frames() if frames else ()
        change += () if frames else self.augment.silence(rate)
        return (ResampleAudio(rate=rate), *change, *fixed, *mask), (
            ResampleAudio(rate=rate),
            Truncate(length=length),
            *fixed,
        )

    def _laid_out(
        self, found: DataSet, context: Context, collate: Collate, processor: AudioProcessor, *spelled: Transform
    ) -> dict[str, Any]:
        """Return what `Opened` is told of batches."""
        train, held = self._transforms(processor, spelled)
        once = {
            split: partial(each_once, found.splits[split], *held, rows=context.held_rows(self.rows), collate=collate)
            for split in ("validation", "test")
        }
        return {
            "batches": stream(shuffled(found.splits["train"], *train, seed=context.seed), collate, self.rows),
            **once,
            "held": HeldAudio(table=found.splits["test"], transforms=held, processor=processor),
            "processor": processor,
        }


@frozen
class LabelledAudio(AudioExamples):
    """Lay out the log-mel spectrum of a recording a row, of so many seconds: silence behind it, the rest left out;
    its samples, where training begins with a checkpoint that hears these."""

    bins: int = 40
    """Mel bins."""

    def open(self, data: Any, context: Context) -> Opened:
        """Open the recordings; held out are the test's `HeldAudio`.

        Args:
          data: has `open()`, which gives a `DataSet` of labelled `Recordings`.
        """
        known = context.audio_processor
        return self._settled(known, context.init, *READS)._open(data, context, known)

    def _open(self, data: Any, context: Context, known: AudioProcessor | None) -> Opened:
        found, rate = self._opened(data, "classes", cut=True)
        processor = spectra(rate, self.seconds, self.bins) if known is None else known
        frames = processor.kind.name == "input_features"
        collate = SpectrogramRows() if frames else WaveformRows(samples=self.seconds * rate)
        return Opened(
            spec=Spec(
                uses=("classification",), classes=found.classes, sizes=frame_sizes(self.seconds, self.bins), audio=True
            ),
            fields=named_classes(found.classes),
            **self._laid_out(found, context, collate, processor),
        )


def prepared(found: DataSet, rate: int, seconds: int, limit: int, *, cut: bool) -> DataSet:
    """Check every recording before training: its header, and all of it where memory has room for all.

    Args:
      found: the recordings; sentences made of recordings are as they are.
      rate: samples a second that a model hears.
      seconds: that it hears at most.
      limit: bytes that recordings may take in memory.
      cut: whether longer ones are cut; else they are refused.

    Raises:
      ValueError: a recording that is damaged, or longer than the model hears; names its file.
    """
    others, long, splits = 0, 0, dict(found.splits)
    for split, items in splits.items():
        if not isinstance(items, Recordings):
            continue
        size = 0
        for index in range(len(items)):
            length, own = items["audio"].size(index)
            others, long = others + (own != rate), long + (length > seconds * own)
            if length > seconds * own and not cut:
                raise ValueError(
                    f"a recording must not be longer than the model hears, {seconds} seconds, got {length / own:.1f} in"
                    f" {items['name'][index]}"
                )
            size += 4 * length * rate // own
        if size <= limit:
            splits[split], limit = load_audio(items, rate), limit - size
    if others:
        print(f"{others:,} recordings at another rate are resampled to {rate:,} Hz", flush=True)
    if long:
        print(f"{long:,} recordings longer than {seconds} s are cut", flush=True)
    return replace(found, splits=splits)


def spectra(rate: int, seconds: int, bins: int) -> AudioProcessor:
    """Make Whisper's feature extractor: windows of 25 milliseconds, a hundred a second.

    Raises:
      ValueError: a rate of which a window or a step is no whole number.
    """
    if rate % (2 * HOP):
        raise ValueError(f"spectra take a rate that is a multiple of {2 * HOP}, got {rate}; say another by --rate")
    return AudioProcessor.of({
        "feature_extractor_type": "WhisperFeatureExtractor", "sampling_rate": rate, "feature_size": bins,
        "chunk_length": seconds, "hop_length": rate // HOP, "n_fft": rate // 40, "n_samples": seconds * rate,
        "nb_max_frames": seconds * HOP, "padding_side": "right", "padding_value": 0.0, "return_attention_mask": False,
    })  # fmt: skip


def sampled(rate: int) -> AudioProcessor:
    """Make the feature extractor of wav2vec 2.0: samples of mean 0 and variance 1."""
    return AudioProcessor.of({
        "feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": rate, "feature_size": 1,
        "do_normalize": True, "padding_side": "right", "padding_value": 0.0, "return_attention_mask": True,
    })  # fmt: skip


def frame_sizes(seconds: int, bins: int) -> Mapping[str, int]:
    """Name the sizes of an encoder of spectra, which leaves every other frame."""
    return {"max_source": seconds * HOP // 2, "channels": bins}


def classify_audio(
    pretrained: Pretrained, audio: Sequence[Any], *, sampling_rate: int | None = None
) -> list[list[Label]]:
    """Return what recordings are, one after another.

    Args:
      audio: files, bytes of files, `data.audio.Waveform`s, or arrays of samples; what is beyond the model's window is
        left out.
      sampling_rate: of arrays; the model's own by default.

    Returns:
      For each recording all classes, the most probable first, as `classify` gives them.

    Raises:
      ValueError: a checkpoint of another kind or without a feature extractor, no such file, or what is no recording.
    """
    require_use(pretrained, "classification", "audio")
    processor, found = audio_processor_of(pretrained), []
    for waveform in audio:
        if isinstance(waveform, str | os.PathLike):
            file_of(pretrained, waveform, "recordings")
        logits = pretrained(**processor(waveform, sampling_rate=sampling_rate)).logits
        found += ranked(pretrained, np.asarray(logits.astype(np.float32)))
    return found


def read_audio(pretrained: Pretrained, file: str | os.PathLike) -> Waveform:
    """Decode the file of a recording that a checkpoint is to hear.

    Raises:
      ValueError: no such file, or one that is no recording.
    """
    return decode_audio(file_of(pretrained, file, "recordings"))
