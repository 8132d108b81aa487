"""What a model is given to be looked into: its inputs, and what people call their parts.

Axes: T positions, C channels or mel bins, I frames; H and W of an image.
"""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flax_transformer.data.audio.decode import decode_audio
from flax_transformer.data.file import load_arrays
from flax_transformer.data.image import decode_image
from flax_transformer.hub import Pretrained
from flax_transformer.report.image_attention import png
from flax_transformer.task.attention import LONGEST, spell
from flax_transformer.task.checkpoint import audio_processor_of, image_processor_of, tokenizer_of
from flax_transformer.task.video_classification import read_video

WRITTEN = 24
"""Tokens that a model writes in answer at most, where none are given."""
LARGEST = 8 << 20
"""Bytes of a file at most."""
ALONE = ("pixel_values", "input_features", "input_values")


@dataclass(frozen=True)
class Case:
    """Inputs of one row, and how their parts are called."""

    inputs: Mapping[str, np.ndarray]
    """By the names of `hub.inputs.Inputs`, [1, …]."""
    source: tuple[str, ...] = ()
    """The tokens that are read, spelt."""
    target: tuple[str, ...] = ()
    """The tokens that a decoder is fed, spelt."""
    written: tuple[int, ...] = ()
    """The tokens that it is to write, a place earlier: each position's right answer."""
    image: str = ""
    """The image, the frames of a video or the spectrogram, as a data URL."""
    text: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)


def make_case(
    pretrained: Pretrained,
    text: str = "",
    file: bytes | Path | None = None,
    written: Sequence[int] | None = None,
) -> Case:
    """Make inputs of a text, a file, or both, as the model reads them.

    Args:
      text: for models that read one; token ids with spaces between where the checkpoint has no tokenizer.
      file: an image, a recording, a video, or for any model the .npz of arrays by the names of its inputs.
      written: token ids that a decoder is fed after its start token; by default what it writes in answer. Of a model
        that writes on, those that follow the text.

    Raises:
      ValueError: what the model does not read, or cannot, and what is too long.
    """
    known = pretrained.architecture
    if file is not None and _is_arrays(file):
        return case_of_arrays(pretrained, _read_arrays(file))
    inputs, shown, tokens = {}, "", ()
    needs = known.inputs.needs
    if file is not None:
        inputs, shown = _read_file(pretrained, file)
    if text.strip() and "input_ids" in known.inputs.names and not known.inputs.colours:
        words = _tokens(pretrained, text)
        inputs, tokens = {**inputs, **words}, spelt(pretrained, words["input_ids"][0])
    missing = [name for name in needs if name not in inputs and name != "decoder_input_ids"]
    if not inputs or (missing and not known.inputs.either):
        name, reads = pretrained.config["architectures"][0], " and ".join(known.inputs.reads) or ", ".join(needs)
        raise ValueError(f"a {name} reads {reads}; got {'a text' if text.strip() else 'no text'}"
                         f" and {'no file' if file is None else 'a file'}")  # fmt: skip
    target: tuple[str, ...] = ()
    if "decoder_input_ids" in known.inputs.names and _decodes(pretrained):
        written = _answer(pretrained, inputs) if written is None else [int(token) for token in written][:LONGEST]
        read = [_start(pretrained), *written]
        inputs["decoder_input_ids"] = np.array([read], np.int32)
        target = spelt(pretrained, read, target=True)
    elif written and tokens and "text-generation" in known.uses:
        inputs = _continued(pretrained, inputs, written)
        tokens, written = spelt(pretrained, inputs["input_ids"][0]), ()
    return Case(inputs, tokens, target, tuple(written or ()), shown, text)


def case_of_arrays(pretrained: Pretrained, arrays: Mapping[str, np.ndarray]) -> Case:
    """Make a case of arrays by the names of inputs; of several rows the first.

    Raises:
      ValueError: names of no input, or inputs that are missing.
    """
    known = pretrained.architecture
    known.inputs.check(pretrained.config["architectures"][0], [*arrays])
    inputs = {name: array[:1] if array.ndim else array for name, array in arrays.items()}
    source = inputs.get("input_ids", np.zeros((1, 0), int))[0]
    target = inputs.get("decoder_input_ids", np.zeros((1, 0), int))[0]
    shown = ""
    if (pixels := inputs.get("pixel_values")) is not None:
        shown = _drawn(np.concatenate(list(np.moveaxis(pixels.reshape(-1, *pixels.shape[-3:]), 1, -1)), axis=1))
    if (frames := inputs.get("input_features")) is not None:
        shown = _drawn(np.repeat(np.repeat(frames[0, ::-1], 4, 0), 4, 1)[..., None])
    return Case(
        inputs, spelt(pretrained, source.ravel()), spelt(pretrained, target, target=True), tuple(target[1:].tolist()),
        shown, " ".join(map(str, source.ravel().tolist())),
    )  # fmt: skip


def repeated_tokens(pretrained: Pretrained, rows: int = 8, length: int = 16) -> dict[str, np.ndarray]:
    """Return random tokens that are said twice, in which heads show what they look for (Olsson et al. 2022).

    Raises:
      ValueError: a model that reads anything but texts.
    """
    known = pretrained.architecture.inputs
    if known.needs != ("input_ids",) or pretrained.vocabulary is None or known.colours:
        raise ValueError(f"what heads do is asked of models of texts alone, this one reads {', '.join(known.needs)}")
    rng = np.random.default_rng(0)
    half = rng.integers(min(5, pretrained.vocabulary - 1), pretrained.vocabulary, (rows, length), dtype=np.int32)
    ids = np.concatenate([half, half], axis=-1)
    made = {"input_ids": ids, "attention_mask": np.ones_like(ids), "decoder_input_ids": ids}
    return {name: value for name, value in made.items() if name in known.names}


def _read_file(pretrained: Pretrained, file: bytes | Path) -> tuple[dict[str, np.ndarray], str]:
    """Read an image, a video or a recording as the model reads it; give it as an image too."""
    known = pretrained.architecture
    reads = known.inputs.reads
    if "audio" in reads:
        made = {name: np.asarray(value) for name, value in audio_processor_of(pretrained)(decode_audio(file)).items()}
        made = {name: value for name, value in made.items() if name in known.inputs.names}
        frames = made.get("input_features")
        waves = made.get("input_values")
        return made, _drawn(frames[0, ::-1, :, None]) if frames is not None else _wave(waves[0])
    if "videos" in reads:
        if isinstance(file, bytes):
            raise ValueError("a video is given as a file or a folder of frames by --file, got its bytes")
        processor, frames = image_processor_of(pretrained), read_video(pretrained, file)
        return _arrays(processor(list(frames))), png(np.concatenate([processor.shown(each) for each in frames], axis=1))
    if "images" not in reads:
        raise ValueError(f"a {pretrained.config['architectures'][0]} reads {' and '.join(reads)}, it was given a file")
    processor = image_processor_of(pretrained)
    image = decode_image(file, channels=pretrained.config.channels or 3, name="the image")
    return _arrays(processor(image)), _drawn(processor.shown(image))


def _arrays(made: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in made.items()}


def _tokens(pretrained: Pretrained, text: str) -> dict[str, np.ndarray]:
    """Tokenize a text, or read token ids where there is no tokenizer."""
    if pretrained.tokenizer is None:
        try:
            ids = np.array([[int(part) for part in text.split()]], np.int32)
        except ValueError as error:
            raise ValueError(f"the checkpoint has no tokenizer, so a text is token ids, got {text[:40]!r}") from error
        pretrained.check_ids("input_ids", ids)
        made = {"input_ids": ids}
    else:
        made = _arrays(tokenizer_of(pretrained, text)([text]))
        made = {name: value for name, value in made.items() if name in pretrained.architecture.inputs.names}
    if not 0 < made["input_ids"].shape[-1] <= LONGEST:
        raise ValueError(f"a text must have 1 to {LONGEST} tokens, got {made['input_ids'].shape[-1]}")
    if "multiple-choice" in pretrained.architecture.uses:
        made = {name: value[None] for name, value in made.items()}
    return made


def _continued(
    pretrained: Pretrained, inputs: Mapping[str, np.ndarray], written: Sequence[int]
) -> dict[str, np.ndarray]:
    """Put tokens behind a text."""
    more = np.array([[int(token) for token in written]], inputs["input_ids"].dtype)
    pretrained.check_ids("input_ids", more)
    made = dict(inputs)
    for name, added in (("input_ids", more), ("attention_mask", np.ones_like(more)),
                        ("token_type_ids", np.zeros_like(more))):  # fmt: skip
        if name in made:
            made[name] = np.concatenate([made[name], added], axis=-1)
    if (size := made["input_ids"].shape[-1]) > LONGEST:
        raise ValueError(f"a text must have 1 to {LONGEST} tokens, got {size} with those that were written")
    return made


def spelt(pretrained: Pretrained, ids: Any, *, target: bool = False) -> tuple[str, ...]:
    """Spell tokens: those that are read, or those of a decoder."""
    ids = [int(token) for token in np.asarray(ids).ravel()]
    if pretrained.tokenizer is None or not hasattr(pretrained.tokenizer, "decode"):
        return tuple(map(str, ids))
    tokenizer = pretrained.tokenizer
    return spell((getattr(tokenizer, "target", None) or tokenizer) if target else tokenizer, ids)


def _decodes(pretrained: Pretrained) -> bool:
    """Return whether a decoder is to be fed what it writes."""
    known = pretrained.architecture
    return "decoder_input_ids" in known.inputs.needs or bool(_writes(pretrained))


def _writes(pretrained: Pretrained) -> bool:
    return bool({"text2text-generation", "automatic-speech-recognition"} & set(pretrained.architecture.uses))


def _start(pretrained: Pretrained) -> int:
    for fields in (pretrained.generation, pretrained.config):
        if isinstance(start := fields.get("decoder_start_token_id"), int):
            return start
    tokenizer = pretrained.tokenizer
    return getattr(tokenizer, "bos", None) or getattr(tokenizer, "cls", None) or 0


def generation_inputs(inputs: Mapping[str, np.ndarray]) -> tuple[tuple[np.ndarray, ...], dict[str, np.ndarray]]:
    """Return what `generate` is given first, and by name."""
    given = {name: value for name, value in inputs.items() if name in ("input_ids", "attention_mask", *ALONE)}
    first = next(name for name in (*ALONE, "input_ids") if name in given)
    return () if first == "pixel_values" else (given.pop(first),), given


def _answer(pretrained: Pretrained, inputs: Mapping[str, np.ndarray]) -> list[int]:
    """Write in answer; the empty text where the model cannot."""
    if not _writes(pretrained):
        return []
    leading, given = generation_inputs(inputs)
    rows = np.asarray(pretrained.generate(*leading, **given, max_new_tokens=WRITTEN))[0].tolist()
    return rows[1:] if rows and rows[0] == _start(pretrained) else rows


def _drawn(pixels: np.ndarray) -> str:
    """Return values as an image, from their smallest to their largest."""
    wide = pixels.astype(np.float32)
    if pixels.dtype != np.uint8:
        wide = 255 * (wide - wide.min()) / max(float(np.ptp(wide)), 1e-9)
    shown = np.round(wide).astype(np.uint8)
    return png(shown[..., 0] if shown.shape[-1] == 1 else shown[..., :3] if shown.shape[-1] > 2 else shown[..., 0])


def _wave(samples: np.ndarray, width: int = 600, height: int = 96) -> str:
    """Draw samples over time: from the smallest to the largest in every column of pixels."""
    parts = np.array_split(samples / max(float(np.abs(samples).max()), 1e-9), min(width, len(samples)))
    image = np.full((height, len(parts)), 255, np.uint8)
    for x, part in enumerate(parts):
        low, high = ((1 - np.array([part.max(), part.min()])) / 2 * (height - 1)).astype(int)
        image[low : high + 1, x] = 60
    return png(image)


def _is_arrays(file: bytes | Path) -> bool:
    if isinstance(file, Path):
        return file.suffix == ".npz"
    return file[:4] == b"PK\x03\x04"


def _read_arrays(file: bytes | Path) -> dict[str, np.ndarray]:
    """Read an .npz without pickles, and refuse one that is larger than a page can show."""
    name = "a file of arrays" if isinstance(file, bytes) else str(file)
    try:
        with zipfile.ZipFile(io.BytesIO(file) if isinstance(file, bytes) else file) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except (OSError, zipfile.BadZipFile, EOFError, ValueError, NotImplementedError) as error:
        raise ValueError(f"{name} must be an .npz: {error}") from error
    if size > LARGEST:
        raise ValueError(f"arrays must have at most {LARGEST:,} bytes in all, got {size:,} in {name}")
    return {each.removeprefix("in_"): array for each, array in load_arrays(file, name).items()}
