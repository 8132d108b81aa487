"""The logarithm of a recording's power by mel bins, as Whisper hears it (Radford et al. 2022,
https://arxiv.org/abs/2212.04356, §2.2).

Axes: T samples, I frames, F frequencies, C mel bins.
"""

import math
from functools import cache

import numpy as np
from jaxtyping import Float

LINEAR, STEP = 1000.0, np.log(6.4) / 27
"""Slaney's mels (1998): 3 for every 200 Hz up to 1 kHz, beyond it 27 for every factor of 6.4."""


FRAME_CHUNK = 4096
"""Frames whose windows are laid out at a time."""


def _mels(hertz: float) -> float:
    return 3 * hertz / 200 if hertz < LINEAR else 15 + np.log(hertz / LINEAR) / STEP


def _hertz(mels: Float[np.ndarray, "X"]) -> Float[np.ndarray, "X"]:
    return np.where(mels < 15, 200 * mels / 3, LINEAR * np.exp(STEP * (np.maximum(mels, 15) - 15)))


@cache
def mel_filters(bins: int, window: int, rate: int, highest: float = 8000.0) -> Float[np.ndarray, "F C"]:
    """Return triangles over the F = window / 2 + 1 frequencies, evenly spaced in Slaney's mels, each of the same area.

    Args:
      bins: C.
      window: samples of a frame.
      rate: samples a second.
      highest: Hz where the last triangle ends.
    """
    edges = _hertz(np.linspace(0.0, _mels(highest), bins + 2))
    frequencies = np.linspace(0, rate // 2, window // 2 + 1)
    distance = edges[None] - frequencies[:, None]
    widths = np.diff(edges)
    rising, falling = -distance[:, :-2] / widths[:-1], distance[:, 2:] / widths[1:]
    filters = np.maximum(0, np.minimum(rising, falling)) * (2 / (edges[2:] - edges[:-2]))
    filters.setflags(write=False)
    return filters


def log_mel(
    samples: Float[np.ndarray, "T"], *, bins: int, window: int, hop: int, rate: int
) -> Float[np.ndarray, "C I"]:
    """Return I = ⌊T / hop⌋ frames of a recording, about from -1 to 1; silence is -1.5.

    Every frame is centred on a multiple of `hop`, with the audio mirrored at its ends, under a Hann window; its power
    by mel bins is log10, held within 8 of the largest of the whole recording, plus 4, divided by 4.

    Raises:
      ValueError: a recording shorter than one hop.

    >>> log_mel(np.zeros(800, np.float32), bins=80, window=400, hop=160, rate=16_000)[0]
    array([-1.5, -1.5, -1.5, -1.5, -1.5], dtype=float32)
    """
    count = len(samples) // hop
    if not count:
        raise ValueError(f"a recording must be as long as a frame's step of {hop} samples, got {len(samples)}")
    padded = np.pad(samples, window // 2, mode="reflect").astype(np.float64)
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop][:count]
    hann, filters = np.hanning(window + 1)[:-1], mel_filters(bins, window, rate)
    parts = []
    for i in range(0, count, FRAME_CHUNK):
        # Kept in single precision, as transformers keeps them, so that the faintest bins agree too.
        spectrum = np.fft.rfft(frames[i : i + FRAME_CHUNK] * hann).astype(np.complex64)
        power = np.abs(spectrum, dtype=np.float64) ** 2
        parts.append(np.log10(np.maximum(1e-10, filters.T @ power.T)).astype(np.float32))
    logs = np.concatenate(parts, axis=1)
    return (np.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0


def resample(samples: Float[np.ndarray, "T"], rate: int, to: int) -> Float[np.ndarray, "S"]:
    """Change the rate from `rate` to `to` samples a second: S = ⌈T · to / rate⌉.

    A polyphase filter, `scipy.signal.resample_poly` with its own window (Kaiser's, β = 5) and zeros beyond the ends,
    computed in float64: what is above half of the lower rate is taken away, so that it does not come back as another
    tone.

    Raises:
      ValueError: a rate that is not a positive whole number.

    >>> resample(np.ones(80, np.float32), 8_000, 16_000).shape
    (160,)
    """
    if min(rate, to) < 1 or rate != int(rate) or to != int(to):
        raise ValueError(f"rates must be whole numbers of samples a second, at least 1, got {rate} and {to}")
    if rate == to:
        return samples
    from scipy.signal import resample_poly

    common = math.gcd(int(rate), int(to))
    return resample_poly(samples.astype(np.float64), to // common, rate // common).astype(np.float32)
