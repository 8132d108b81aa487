"""Tell what sounds are.

Axes: B sounds.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from flax_transformer.data.audio.decode import Waveform, decode_audio
from flax_transformer.hub import Pretrained
from flax_transformer.task.use.classify import Label, ranked
from flax_transformer.task.use.require import audio_processor_of, file_of, require_use


def classify_audio(
    pretrained: Pretrained, sounds: Sequence[Any], *, sampling_rate: int | None = None
) -> list[list[Label]]:
    """Tell what sounds are, one after another.

    Args:
      sounds: files, bytes of files, `data.audio.Waveform`s, or arrays of samples; what is beyond the model's window is
        left out.
      sampling_rate: of arrays; the model's own by default.

    Returns:
      For each sound all classes, the most probable first, as `classify` gives them.

    Raises:
      ValueError: a checkpoint of another kind or without a feature extractor, no such file, or what is no sound.
    """
    require_use(pretrained, "classify", "sound")
    processor, found = audio_processor_of(pretrained), []
    for sound in sounds:
        if isinstance(sound, str | os.PathLike):
            file_of(pretrained, sound, "sounds")
        logits = pretrained(**processor(sound, sampling_rate=sampling_rate)).logits
        found += ranked(pretrained, np.asarray(logits.astype(np.float32)))
    return found


def read_audio(pretrained: Pretrained, file: str | os.PathLike) -> Waveform:
    """Decode the file of a sound that a checkpoint is to hear.

    Raises:
      ValueError: no such file, or one that is no sound.
    """
    return decode_audio(file_of(pretrained, file, "sounds"))
