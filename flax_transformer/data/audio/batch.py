"""Batches of sounds: laid out, with classes, letters, or the tokens of texts.

An example that is None makes an empty row, of weight 0.

Axes: B sounds, T samples, I frames, C mel bins, N tokens.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from flax_transformer.data.examples import Arrays, Example
from flax_transformer.data.label import check_tokens
from flax_transformer.data.text.padded_batch import pad_arrays, teacher_forcing_batch
from flax_transformer.frozen import frozen


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
          ValueError: a sound or a text that is longer, a token that is the blank, 0.
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
