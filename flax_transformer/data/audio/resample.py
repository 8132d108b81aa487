"""Sounds at another rate."""

import math

import numpy as np
from jaxtyping import Float


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
