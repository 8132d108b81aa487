"""Write down what is said, in sounds of any length."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flax_transformer.hub import Pretrained
from flax_transformer.hub.processor.ctc import collapse
from flax_transformer.hub.speech import Segment, Speech, segments
from flax_transformer.task.use.require import audio_processor_of, require_use


@dataclass(frozen=True)
class Spoken:
    """A piece of what is said: from when to when, in seconds."""

    start: float
    end: float
    text: str


@dataclass(frozen=True)
class Transcript:
    """What is said in a sound, and when."""

    text: str
    segments: tuple[Spoken, ...] = ()
    """Piece by piece, where times were asked for."""


def transcribe(
    pretrained: Pretrained,
    sounds: Sequence[Any],
    *,
    sampling_rate: int | None = None,
    language: str | None = None,
    task: str | None = None,
    timestamps: bool = False,
    **settings: Any,
) -> list[Transcript]:
    """Write down what is said in each sound, one after another.

    What is longer than a window of the model (30 seconds) is heard window by window, each from the end of the last
    piece that was whole. A model that scores letters at every position (CTC) hears a sound as a whole, however long it
    is, and gives the best letter of each; it has no language, task, times or settings.

    Args:
      sounds: files, bytes of files, `data.audio.Waveform`s, or arrays of samples.
      sampling_rate: of arrays; the model's own by default.
      language: spoken, as a code such as de; by default the most probable one.
      task: `transcribe`, or `translate` into English; by default the checkpoint's own.
      timestamps: whether to tell when each piece is said.
      settings: of generation, as `hub.speech.generate` takes them.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a checkpoint of another kind, without a feature extractor or a tokenizer; what is no sound; a language
        or a task that the checkpoint does not know.
    """
    scores = "transcribe" in pretrained.architecture.uses
    require_use(pretrained, "transcribe" if scores else "respond", "sound")
    processor, tokenizer = audio_processor_of(pretrained), pretrained.tokenizer
    if tokenizer is None:
        raise ValueError("text needs a tokenizer, the checkpoint has no tokenizer files")
    if scores:
        settings = {name: value for name, value in settings.items() if (name, value) != ("num_beams", 1)}
        if language is not None or task is not None or timestamps or settings:
            asked = {"language": language, "task": task, "timestamps": timestamps, **settings}
            raise ValueError(
                f"a {pretrained.config['architectures'][0]} gives the best letters and nothing else, got "
                f"{', '.join(f'{name}={value!r}' for name, value in asked.items() if value)}"
            )
        return [_letters(pretrained, sound, sampling_rate) for sound in sounds]
    said = pretrained.generation or pretrained.config
    first = said.get("no_timestamps_token_id")
    how = Speech(language=language, task=task, return_timestamps=True if timestamps else None)

    def spell(pieces: Sequence[Segment]) -> str:
        tokens = [token for piece in pieces for token in piece.tokens if first is None or token < first]
        return tokenizer.decode(tokens).strip() if tokens else ""

    found = []
    for sound in sounds:
        frames = processor(sound, sampling_rate=sampling_rate, truncation=False)["input_features"]
        (pieces,) = segments(pretrained, frames, None, how, settings)
        spoken = (Spoken(float(piece.start), float(piece.end), spell([piece])) for piece in pieces)
        found.append(Transcript(spell(pieces), tuple(each for each in spoken if each.text) if timestamps else ()))
    return found


def _letters(pretrained: Pretrained, sound: Any, rate: int | None) -> Transcript:
    logits = pretrained(**pretrained.processor(sound, sampling_rate=rate)).logits[0]
    tokens = collapse(np.asarray(logits.argmax(axis=-1)), blank=pretrained.config.integer("pad_token_id", 0))
    return Transcript(pretrained.tokenizer.decode(tokens).strip() if tokens else "")
