"""Rotary frequencies, and how they are slowed for texts longer than those a model was trained on.

What makes frequencies is called with the width and the base and returns the radians per position of each pair of
channels. It may have an `amplitude`, by which sines and cosines are multiplied. Where it says `by_length`, it is also
given the length of each text, and returns frequencies of each.

Axes: B batch, half the pairs of channels.
"""

import math
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flax_transformer.frozen import frozen


def rotary_frequencies(width: int, base: float = 10000.0) -> Float[Array, "half"]:
    """Return the radians per position of each pair of channels: `base ** (-2 i / width)`.

    >>> rotary_frequencies(4)
    Array([1.  , 0.01], dtype=float32)
    """
    return jnp.asarray(_frequencies(width, base))


def _frequencies(width: int, base: float) -> np.ndarray:
    if width % 2:
        raise ValueError(f"rotary positions turn pairs of channels, so the width must be even, got {width}")
    # A position of many thousands blows up the last bit of a frequency. NumPy's is the same compiled or not and on
    # every device: powers of float32 exponents, each step rounded correctly, as PyTorch's are.
    exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    return np.float32(1) / np.power(float(base), exponents.astype(np.float64)).astype(np.float32)


def axial_frequencies(width: int, base: float) -> Float[Array, "half"]:
    """Return the radians per position of pairs of channels where the first half turns by the row of an image's patch,
    the second by its column: those of half the width, twice.

    >>> axial_frequencies(8, 10000.0)
    Array([1.  , 0.01, 1.  , 0.01], dtype=float32)
    """
    return jnp.asarray(np.tile(_frequencies(width // 2, base), 2))


@frozen
class LinearScaling:
    """Rotary frequencies slowed for longer texts, all by one factor (Chen et al. 2023, arxiv.org/abs/2306.15595).

    >>> print(LinearScaling(factor=4.0)(4, 10000.0))
    [0.25   0.0025]
    """

    factor: float

    def __post_init__(self):
        if self.factor <= 0:
            raise ValueError(f"frequencies are divided by a factor above 0, got {self.factor}")

    def __call__(self, width: int, base: float) -> Float[Array, "half"]:
        """Return the radians per position of each pair of channels."""
        return jnp.asarray(_frequencies(width, base) / np.float32(self.factor))


@frozen
class Llama3Scaling:
    """Rotary frequencies stretched for longer texts as Llama 3.1 does (https://arxiv.org/abs/2407.21783).

    Channels that turn more than `high` times over the original length stay, those that turn less than `low` times
    are slowed by `factor`, and those between are blended.

    >>> print(Llama3Scaling(factor=8.0)(8, 500000.0) / rotary_frequencies(8, 500000.0))
    [1. 1. 0.37... 0.125 ]
    """

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    original_length: int = 8192

    def __post_init__(self):
        if self.factor <= 0 or self.original_length < 1 or not 0 < self.low < self.high:
            raise ValueError(
                "factor and original_length must be above 0 and low between 0 and high, got "
                f"factor={self.factor}, original_length={self.original_length}, low={self.low}, high={self.high}"
            )

    def __call__(self, width: int, base: float) -> Float[Array, "half"]:
        """Return the radians per position of each pair of channels."""
        frequencies = _frequencies(width, base)
        turns = self.original_length / (2 * np.float32(math.pi) / frequencies)
        blend = np.clip((turns - self.low) / (self.high - self.low), 0, 1).astype(np.float32)
        return jnp.asarray((1 - blend) * frequencies / np.float32(self.factor) + blend * frequencies)


@frozen
class DynamicScaling:
    """Rotary frequencies of a base that grows with the text once that is longer than the original length.

    Source: "NTK-aware" scaling, as Peng et al. 2023 describe it (https://arxiv.org/abs/2309.00071, appendix A.1 and B).

    >>> print(DynamicScaling(factor=2.0, original_length=8)(4, 10000.0, jnp.array([8, 16])))
    [[1.     0.01  ]
     [1.     0.0033...]]
    """

    factor: float
    original_length: int

    by_length: ClassVar[bool] = True

    def __post_init__(self):
        if self.factor <= 0 or self.original_length < 1:
            raise ValueError(f"factor and original_length must be above 0, got {self.factor}, {self.original_length}")

    def __call__(self, width: int, base: float, length: Int[Array, "*B"]) -> Float[Array, "*B half"]:
        """Return the radians per position of each pair of channels, for texts of each length."""
        if width < 4:
            raise ValueError(f"a dynamic base needs two pairs of channels, got {width} channels")
        exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
        longer = self.factor * length[..., None].astype(jnp.float32) / self.original_length - (self.factor - 1)
        slowed = 1 / (base * jnp.maximum(longer, 1) ** (width / (width - 2))) ** exponents
        return jnp.where(length[..., None] > self.original_length, slowed, _frequencies(width, base))


@frozen
class YarnScaling:
    """Rotary frequencies of YaRN (Peng et al. 2023, https://arxiv.org/abs/2309.00071, section 3.2 to 3.4).

    Channels that turn more than `fast` times over the original length stay, those that turn less than `slow` times are
    slowed by `factor`, and between them it changes linearly with the channel.

    >>> print(YarnScaling(factor=4.0, original_length=64)(8, 100.0) / rotary_frequencies(8, 100.0))
    [1.   0.75 0.4... 0.25...]
    """

    factor: float
    original_length: int
    fast: float = 32.0
    slow: float = 1.0
    whole: bool = True
    """Whether the channels between which it changes are rounded to whole ones."""
    scale: float | None = None
    """What sines and cosines are multiplied by; None: 0.1 ln(factor) + 1, and 1 for a factor below 1."""

    def __post_init__(self):
        if self.factor <= 0 or self.original_length < 1 or not 0 < self.slow <= self.fast:
            raise ValueError(
                "factor and original_length must be above 0 and slow between 0 and fast, got "
                f"factor={self.factor}, original_length={self.original_length}, slow={self.slow}, fast={self.fast}"
            )
        if self.scale is not None and self.scale <= 0:
            raise ValueError(f"scale must be above 0, got {self.scale}")

    @property
    def amplitude(self) -> float:
        """What sines and cosines are multiplied by."""
        return (0.1 * math.log(max(self.factor, 1.0)) + 1.0) if self.scale is None else self.scale

    def __call__(self, width: int, base: float) -> Float[Array, "half"]:
        """Return the radians per position of each pair of channels."""
        frequencies = _frequencies(width, base)

        def channel(turns: float) -> float:
            return width * math.log(self.original_length / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = channel(self.fast), channel(self.slow)
        low, high = (math.floor(low), math.ceil(high)) if self.whole else (low, high)
        low, high = max(low, 0), min(high, width - 1)
        high = high + 0.001 if low == high else high
        ramp = np.clip((np.arange(width // 2, dtype=np.float32) - low) / (high - low), 0, 1).astype(np.float32)
        slowed = frequencies / np.float32(self.factor)
        return jnp.asarray(slowed * ramp + frequencies * (1 - ramp))


@frozen
class LongScaling:
    """Rotary frequencies of LongRoPE (Ding et al. 2024, https://arxiv.org/abs/2402.13753): a divisor for each pair.

    >>> scaling = LongScaling(factor=4.0, original_length=8, short=(1.0, 1.0), long=(1.0, 4.0))
    >>> print(scaling(4, 10000.0, jnp.array([8, 9])))
    [[1.     0.01  ]
     [1.     0.0025]]
    """

    factor: float
    original_length: int
    short: tuple[float, ...]
    """Divisors of frequencies, in texts up to the original length."""
    long: tuple[float, ...]
    """In longer ones."""
    scale: float | None = None
    """What sines and cosines are multiplied by; None: sqrt(1 + ln(factor) / ln(original_length)), and 1 for a factor
    below 1."""

    by_length: ClassVar[bool] = True

    def __post_init__(self):
        if self.factor <= 0 or self.original_length < 2:
            raise ValueError(
                f"factor must be above 0 and original_length above 1, got {self.factor}, {self.original_length}"
            )
        if len(self.short) != len(self.long) or not all(each > 0 for each in self.short + self.long):
            raise ValueError(
                f"short and long divisors must be as many and above 0, got {len(self.short)} and {len(self.long)}"
            )
        if self.scale is not None and self.scale <= 0:
            raise ValueError(f"scale must be above 0, got {self.scale}")

    @property
    def amplitude(self) -> float:
        """What sines and cosines are multiplied by."""
        if self.scale is not None:
            return self.scale
        return math.sqrt(1 + math.log(max(self.factor, 1.0)) / math.log(self.original_length))

    def __call__(self, width: int, base: float, length: Int[Array, "*B"]) -> Float[Array, "*B half"]:
        """Return the radians per position of each pair of channels, for texts of each length."""
        if 2 * len(self.short) != width:
            raise ValueError(f"there must be a divisor for each pair of H={width} channels, got {len(self.short)}")
        powers = np.float32(1) / _frequencies(width, base)
        short, long = (np.float32(1) / (np.asarray(part, np.float32) * powers) for part in (self.short, self.long))
        return jnp.where(length[..., None] > self.original_length, long, short)
