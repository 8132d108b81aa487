"""What is changed in audio at random, how it becomes what a model is given, and how it is laid out in batches.

An example has `samples` [T], and later perhaps `frames` [I, C]; a transform is `transform(example, rng)`, a pure
function of both. The sources: SpecAugment (Park et al. 2019, https://arxiv.org/abs/1904.08779), changes of speed (Ko et
al. 2015). An example that is None makes an empty row, of weight 0.

Axes: B recordings, T samples, I frames, C mel bins, N tokens.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from flax_transformer.data.audio.spectrum import resample
from flax_transformer.data.examples import Arrays, Example
from flax_transformer.data.label import check_tokens
from flax_transformer.data.text.padded_batch import pad_arrays, teacher_forcing_batch
from flax_transformer.frozen import frozen


@frozen
class ResampleAudio:
    """Return the samples of an example's recording at a rate."""

    rate: int

    def __call__(self, example: Example, rng: np.random.Generator) -> dict[str, Any]:
        """Put `samples` in place of `waveform`."""
        waveform = example["audio"]
        rest = {name: value for name, value in example.items() if name != "audio"}
        return {**rest, "samples": resample(waveform.samples, waveform.rate, self.rate)}


@frozen
class Truncate:
    """Leave out what is beyond a number of samples."""

    length: int

    def __call__(self, example: Example, rng: np.random.Generator) -> dict[str, Any]:
        """Cut the samples."""
        return {**example, "samples": example["samples"][: self.length]}


@frozen
class Speed:
    """Play a recording up to so much faster or slower, its pitch with it; never longer than a number of samples."""

    most: float
    """Share of the speed."""
    length: int

    def __call__(self, example: Example, rng: np.random.Generator) -> dict[str, Any]:
        """Read the samples at other times, by linear interpolation."""
        samples = example["samples"]
        rate = max(1 + rng.uniform(-self.most, self.most), len(samples) / max(self.length, 1))
        times = np.arange(max(int(len(samples) / rate), 1)) * rate
        return {**example, "samples": np.interp(times, np.arange(len(samples)), samples).astype(np.float32)}


@frozen
class Shift:
    """Begin a recording later, after up to so many samples of silence, as far as it stays within a length."""

    most: int
    length: int

    def __call__(self, example: Example, rng: np.random.Generator) -> dict[str, Any]:
        """Put silence before the samples."""
        samples = example["samples"]
        room = max(min(self.most, self.length - len(samples)), 0)
        silence = np.zeros(int(rng.integers(room + 1)), np.float32)
        return {**example, "samples": np.concatenate([silence, samples])}


@frozen
class Gain:
    """Make a recording up to so many decibels louder or quieter."""

    decibels: float

    def __call__(self, example: Example, rng: np.random.Generator) -> dict[str, Any]:
        """Multiply the samples."""
        factor = np.float32(10 ** (rng.uniform(-self.decibels, self.decibels) / 20))
        return {**example, "samples": example["samples"] * factor}


@frozen
class Noise:
    """Add white noise, of a standard deviation up to so much of the recording's own; silence stays silent."""

    most: float

    def __call__(self, example: Example, rng: np.random.Generator) -> dict[str, Any]:
        """Add to the samples."""
        samples = example["samples"]
        level = np.float32(rng.uniform(0, self.most)) * samples.std()
        return {**example, "samples": samples + level * rng.standard_normal(len(samples), np.float32)}


@frozen
class MaskSamples:
    """Silence stretches of a recording."""

    count: int
    """How many."""
    longest: int
    """Samples of one."""

    def __call__(self, example: Example, rng: np.random.Generator) -> dict[str, Any]:
        """Put zeros in."""
        return {**example, "samples": _masked(example["samples"], 0, self.count, self.longest, 0.0, rng)}


@frozen
class MaskFrames:
    """Put the mean of a spectrum in place of stretches of time and of bands of frequencies (SpecAugment)."""

    times: int = 0
    """Stretches."""
    longest: int = 0
    """Frames of one."""
    bands: int = 0
    widest: int = 0
    """Bins of a band."""

    def __call__(self, example: Example, rng: np.random.Generator) -> dict[str, Any]:
        """Mask the frames."""
        frames = example["frames"]
        mean = float(frames.mean())
        frames = _masked(frames, 0, self.times, self.longest, mean, rng)
        return {**example, "frames": _masked(frames, 1, self.bands, self.widest, mean, rng)}


def _masked(
    values: np.ndarray, axis: int, count: int, longest: int, filler: float, rng: np.random.Generator
) -> np.ndarray:
    """Fill stretches along an axis, of lengths from 0 to `longest`."""
    found, size = values.copy(), values.shape[axis]
    for _ in range(count):
        length = int(rng.integers(min(longest, size) + 1))
        begin = int(rng.integers(size - length + 1))
        found[(slice(None),) * axis + (slice(begin, begin + length),)] = filler
    return found


@frozen
class SpectrogramRows:
    """Lay out spectra of one size, `frames` [B, I, C], and the numbers of their classes [B]."""

    def __call__(self, examples: Sequence[Example | None]) -> Arrays:
        """Lay out one batch."""
        labels = np.array([0 if each is None else each["label"] for each in examples], np.int32)
        return {"inputs": {"frames": _frames(examples)}, "labels": labels, "weights": _present(examples)}


@frozen
class WaveformRows:
    """Lay out `samples` [B, T] and their `lengths`, and the numbers of their classes [B]."""

    samples: int
    """T."""

    def __call__(self, examples: Sequence[Example | None]) -> Arrays:
        """Lay out one batch."""
        samples, lengths = pad_arrays("samples", [each and each["samples"] for each in examples], self.samples, 0)
        labels = np.array([0 if each is None else each["label"] for each in examples], np.int32)
        return {"inputs": {"samples": samples, "lengths": lengths}, "labels": labels, "weights": _present(examples)}


@frozen
class CTCRows:
    """Lay out `samples` [B, T] and their `lengths`, and the `tokens` of what is said as labels [B, N]."""

    samples: int
    """T."""
    tokens: int
    """N."""

    def __call__(self, examples: Sequence[Example | None]) -> Arrays:
        """Lay out one batch.

        Raises:
          ValueError: a recording or a text that is longer, a token that is the blank, 0.
        """
        for each in examples:
            check_tokens([] if each is None else each["tokens"], 0)
        samples, lengths = pad_arrays("samples", [each and each["samples"] for each in examples], self.samples, 0)
        labels, counts = pad_arrays("tokens", [each and each["tokens"] for each in examples], self.tokens, 0)
        weights = (np.arange(self.tokens) < counts[:, None]).astype(np.float32)
        return {"inputs": {"samples": samples, "lengths": lengths}, "labels": labels, "weights": weights}


@frozen
class SpeechSeq2SeqRows:
    """Lay out spectra of one size as `source` [B, I, C], and the `tokens` of what is said as `target` [B, N] of a
    decoder that begins with `start`."""

    tokens: int
    """N."""
    start: int
    pad: int = 0

    def __call__(self, examples: Sequence[Example | None]) -> Arrays:
        """Lay out one batch.

        Raises:
          ValueError: a text that is longer.
        """
        target = pad_arrays("tokens", [each and each["tokens"] for each in examples], self.tokens, self.pad)
        counts = np.zeros(len(examples), np.int32)
        batch = teacher_forcing_batch(
            np.zeros((len(examples), 0), np.int32), counts, *target, start=self.start, pad=self.pad
        )
        return {**batch, "inputs": {"source": _frames(examples), "target": batch["inputs"]["target"]}}


def _frames(examples: Sequence[Example | None]) -> Float[np.ndarray, "B I C"]:
    first = next(each["frames"] for each in examples if each is not None)
    return np.stack([np.zeros_like(first) if each is None else each["frames"] for each in examples])


def _present(examples: Sequence[Example | None]) -> Float[np.ndarray, " B"]:
    return np.array([each is not None for each in examples], np.float32)
