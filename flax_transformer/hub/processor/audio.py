"""What a checkpoint folder says about audio: recordings to a model's inputs, as `transformers` makes them with NumPy.

Axes: B recordings, T samples, S with padding, C mel bins, I frames.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from flax_transformer.data.audio import Waveform, decode_audio, log_mel, mono, resample
from flax_transformer.hub.file import write_files
from flax_transformer.hub.foreign import check_file
from flax_transformer.hub.processor.call import as_tensors
from flax_transformer.hub.processor.file import read_object
from flax_transformer.hub.processor.image import PREPROCESSOR, PROCESSOR

INSIDE = "feature_extractor"
"""Where a processor of several kinds of inputs has the options of recordings."""
KIND = "feature_extractor_type"

LOUDEST = 32.0
"""What no sample exceeds that is meant to be between -1 and 1, noise of variance 1 included."""

Options = Mapping[str, Any]
Samples, Padded = Float[np.ndarray, "T"], Float[np.ndarray, "S"]


@dataclass(frozen=True)
class AudioProcessorType:
    """A class of `transformers` that reads recordings."""

    options: Options
    """What its options are where nothing is said."""
    name: str
    """Of the input that it makes."""
    window: Callable[[Options], int | None]
    """Samples that a recording is cut or padded to, unless one asks otherwise; None: it is as long as it is."""
    features: Callable[[Samples, Padded, Options], np.ndarray]
    """`features(samples, padded, options)`: the model's input of one recording, and of the same with padding behind."""
    hop: Callable[[Options], int]
    """Samples from one place of the input to the next."""


def _frames(samples: Samples, padded: Padded, options: Options) -> np.ndarray:
    return log_mel(
        padded, bins=options["feature_size"], window=options["n_fft"], hop=options["hop_length"],
        rate=options["sampling_rate"],
    )  # fmt: skip


def _samples(samples: Samples, padded: Padded, options: Options) -> np.ndarray:
    """Return samples of mean 0 and variance 1; padding counts where no mask tells the model of it."""
    if not options["do_normalize"]:
        return padded
    measured = samples if options["return_attention_mask"] else padded
    normed = (padded - measured.mean()) / np.sqrt(measured.var() + 1e-7)
    normed[len(measured) :] = options["padding_value"]
    return normed


KINDS = {
    "Wav2Vec2FeatureExtractor": AudioProcessorType(
        options={
            "feature_size": 1, "sampling_rate": 16_000, "padding_value": 0.0, "do_normalize": True,
            "return_attention_mask": False,
        },
        name="input_values",
        window=lambda options: None,
        features=_samples,
        hop=lambda options: 1,
    ),
    "WhisperFeatureExtractor": AudioProcessorType(
        options={
            "feature_size": 80, "sampling_rate": 16_000, "hop_length": 160, "chunk_length": 30, "n_fft": 400,
            "padding_value": 0.0, "return_attention_mask": False,
        },
        name="input_features",
        window=lambda options: options["chunk_length"] * options["sampling_rate"],
        features=_frames,
        hop=lambda options: options["hop_length"],
    ),
}  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class AudioProcessor:
    """A checkpoint's feature extractor; made by ``load_audio_processor`` or ``AudioProcessor.of``.

    >>> processor = AudioProcessor.of({"feature_extractor_type": "WhisperFeatureExtractor", "chunk_length": 2})
    >>> processor(np.zeros(100, np.float32))["input_features"].shape
    (1, 80, 200)
    """

    config: Options = field(repr=False)
    """Every option, known or not."""
    files: Mapping[str, bytes] = field(repr=False)

    def __repr__(self) -> str:
        return f"AudioProcessor: {self.kind.name} of recordings at {self.rate:,} Hz"

    @classmethod
    def of(cls, config: Options) -> "AudioProcessor":
        """Make the processor that options describe, those of preprocessor_config.json.

        Raises:
          ValueError: an unknown kind of processor, or an option that makes no sense.
        """
        files = {PREPROCESSOR: (json.dumps(dict(config), indent=2, sort_keys=True) + "\n").encode()}
        return _make(config, files)

    @property
    def kind(self) -> AudioProcessorType:
        """What is known of its class."""
        return KINDS[self.config[KIND]]

    @property
    def options(self) -> Options:
        """Every option, with what holds where nothing is said."""
        return {**self.kind.options, **self.config}

    @property
    def rate(self) -> int:
        """Samples a second that the model hears."""
        return self.options["sampling_rate"]

    def __call__(
        self,
        audio: Any,
        *,
        sampling_rate: int | None = None,
        padding: str | None = None,
        truncation: bool = True,
        return_attention_mask: bool | None = None,
        return_tensors: str | None = None,
    ) -> dict[str, np.ndarray]:
        """Make a model's inputs of recordings.

        Of several channels the mean is taken, and recordings at another rate are resampled (`data.audio.resample`). An
        array is one sound, of samples or of samples and channels, several are a list: `transformers` takes an array of
        two axes for several.

        Args:
          audio: one or a list: files, bytes of files, `Waveform`s, or arrays of samples between -1 and 1; whole
            numbers stand for these by their type.
          sampling_rate: of arrays, in samples a second; the model's own by default.
          padding: to the model's window, or the longest of the recordings; the window by default, where there is one.
          truncation: whether what is beyond the window is left out.
          return_attention_mask: also say where there is sound; by default as the checkpoint says.
          return_tensors: "np", or "jax" for JAX's arrays.

        Returns:
          `input_features` [B, C, I], or `input_values` [B, T]; with them perhaps `attention_mask` [B, I] or [B, T].

        Raises:
          FileNotFoundError: no such file.
          ValueError: what is no sound, or one without samples.
        """
        if padding not in (None, "max_length", "longest"):
            raise ValueError(f"padding must be 'max_length' or 'longest', got {padding!r}")
        options, window = dict(self.options), self.kind.window(self.options)
        if return_attention_mask is not None:
            options["return_attention_mask"] = return_attention_mask
        several = isinstance(audio, list | tuple) and not isinstance(audio, Waveform)
        found = [self.read(each, sampling_rate) for each in (audio if several else [audio])]
        if not found:
            raise ValueError("there must be at least one recording, got none")
        found = [samples[:window] if truncation else samples for samples in found]
        length = max(map(len, found))
        if window is not None and padding != "longest":
            length = max(length, window)
        made, seen = [], []
        for samples in found:
            rest = (0, length - len(samples))
            padded = np.pad(samples, rest, constant_values=options["padding_value"])
            made.append(self.kind.features(samples, padded, options))
            seen.append(np.arange(length) < len(samples))
        inputs = {self.kind.name: np.stack(made)}
        if options["return_attention_mask"]:
            places = np.stack(seen).astype(np.int32)[:, :: self.kind.hop(options)]
            inputs["attention_mask"] = places[:, : inputs[self.kind.name].shape[-1]]
        return as_tensors(inputs, return_tensors)

    def read(self, waveform: Any, rate: int | None = None) -> Samples:
        """Return the samples of one recording at the model's rate; arguments and errors as in a call."""
        if isinstance(waveform, str | os.PathLike):
            check_file(waveform, "a recording")
        if isinstance(waveform, str | os.PathLike | bytes):
            waveform = decode_audio(waveform)
        if not isinstance(waveform, Waveform):
            samples = mono(np.asarray(waveform))
            if samples.size and (loudest := np.abs(samples).max()) > LOUDEST:
                raise ValueError(
                    f"samples are floats between -1 and 1, or whole numbers of 8, 16 or 32 bits, got floats up to "
                    f"{loudest:.6g}; samples / 32768 are those of 16 bits"
                )
            waveform = Waveform(samples, self.rate if rate is None else rate)
        if not len(waveform.samples):
            raise ValueError("a recording must have samples, got none")
        return resample(waveform.samples, waveform.rate, self.rate)

    def save(self, folder: str | os.PathLike) -> None:
        """Write the files that `transformers` reads, byte for byte those that it was read from, if any."""
        write_files(self.files, Path(folder))


def read_audio_files(folder: Path) -> dict[str, bytes]:
    """Read the files of a folder that say what is done to recordings, by name."""
    return {name: (folder / name).read_bytes() for name in (PREPROCESSOR, PROCESSOR) if (folder / name).is_file()}


def hears(folder: Path) -> bool:
    """Return whether what a folder says of its inputs is about recordings.

    Raises:
      ValueError: broken files; names the file.
    """
    files = read_audio_files(folder)
    config = read_object(files, PREPROCESSOR, folder)
    return INSIDE in read_object(files, PROCESSOR, folder) or (
        KIND in config and str(config[KIND]) in KINDS and "image_processor_type" not in config
    )


def load_audio_processor(folder: Path) -> AudioProcessor:
    """Read the feature extractor of a checkpoint folder.

    Raises:
      ValueError: one that is not known, or broken files; names the file.
    """
    files = read_audio_files(folder)
    inside = read_object(files, PROCESSOR, folder).get(INSIDE)
    name = PREPROCESSOR if inside is None else PROCESSOR
    config = read_object(files, PREPROCESSOR, folder) if inside is None else inside
    if not isinstance(config, Mapping):
        raise ValueError(f"{folder / name}: {INSIDE} must be an object, got {config!r:.40}")
    try:
        return _make(config, files)
    except ValueError as error:
        raise ValueError(f"{folder / name}: {error}") from error


def _make(config: Options, files: Mapping[str, bytes]) -> AudioProcessor:
    if config.get(KIND) not in KINDS:
        raise ValueError(f"{KIND} must be one of {', '.join(KINDS)}, got {config.get(KIND)!r}")
    kind = KINDS[config[KIND]]
    for name, like in kind.options.items():
        value = config.get(name, like)
        if type(value) is not type(like) and not (type(like) is float and type(value) is int):
            raise ValueError(f"{name} must be a {type(like).__name__}, got {value!r:.40}")
        if type(like) is int and not 1 <= value <= 10**6:
            raise ValueError(f"{name} must be at least 1 and at most a million, got {value!r:.40}")
    if config.get("dither"):
        raise ValueError(f"dither, which is noise, is not supported but as 0, got {config['dither']!r:.40}")
    return AudioProcessor(config=config, files=files)
