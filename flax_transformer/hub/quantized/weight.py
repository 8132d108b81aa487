"""A quantized matrix as it is in a file. Axes: O outputs, I inputs, G groups of inputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class StoredWeight:
    """The weight of a linear layer, [O, I], of which a file has values, scales and perhaps zeros."""

    shape: tuple[int, int]
    kind: str
    """As in `nn.quantized.BITS`."""
    values: Callable[[], np.ndarray]
    """[O, I]: int8, also of 4 bits, or float8, or the 16 indices of nf4."""
    scale: Callable[[], np.ndarray]
    """Floats of 32 or 16 bits [O or 1, G]; [O, I] where groups are no consecutive inputs, or span several outputs."""
    zero: Callable[[], np.ndarray] | None = None
    """int8, of the scale's shape."""
    activations: str | None = None
    """What inputs are rounded to."""
    input_scale: Callable[[], np.ndarray] | None = None
    """One number; None: each row has its own."""
    table: Callable[[], np.ndarray] | None = None
    """What values are indices of: float32 [16]."""
    scale_width: int = 1
    """G, or I where there is a scale for each input."""

    def dequantized(self) -> np.ndarray:
        """Return the matrix that it stands for, float32 [O, I]."""
        values, scale = self.values(), self.scale()
        wide = values.astype(np.float32) if self.table is None else self.table()[values]
        if self.zero is not None:
            wide = wide - spread(self.zero().astype(np.float32), self.shape)
        return wide * spread(scale.astype(np.float32), self.shape)

    @property
    def kept(self) -> bool:
        """Whether it can stay as it is: groups are consecutive inputs of one output."""
        return (self.scale_width < self.shape[1] or self.scale_width == 1) and self.table is None


def spread(part: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Repeat what groups share, so that it has the shape of the values."""
    for axis, size in enumerate(shape):
        part = np.repeat(part, size // part.shape[axis], axis=axis)
    return part


def unpack(words: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Unpack whole numbers without sign from the bits of words along the last axis, the lowest first.

    >>> unpack(np.array([[0x7654]], np.uint32), 4, 4).tolist()
    [[4, 5, 6, 7]]
    """
    if 32 % bits:
        raise ValueError(f"packed weights must have 2, 4 or 8 bits, got {bits}")
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    parts = (words.view(np.uint32)[..., None] >> shifts) & np.uint32(2**bits - 1)
    return parts.reshape(*words.shape[:-1], -1)[..., :count].astype(np.uint8)


def pack(values: np.ndarray, bits: int) -> np.ndarray:
    """Pack whole numbers without sign into int32 along the last axis, the lowest first; what is missing is 0.

    >>> hex(pack(np.array([[4, 5, 6, 7]]), 4)[0, 0])
    '0x7654'
    """
    each = 32 // bits
    missing = -values.shape[-1] % each
    padded = np.pad(values.astype(np.uint32), [(0, 0)] * (values.ndim - 1) + [(0, missing)])
    parts = padded.reshape(*values.shape[:-1], -1, each) << np.arange(0, 32, bits, dtype=np.uint32)
    return np.ascontiguousarray(np.bitwise_or.reduce(parts, axis=-1)).view(np.int32)


def number(config: dict[str, Any], name: str, allowed: tuple[Any, ...], default: Any = None) -> Any:
    """Read a field that may have few values.

    Raises:
      ValueError: another value; names the field.
    """
    value = config.get(name, default)
    if value not in allowed:
        known = ", ".join(map(str, allowed))
        raise ValueError(f"quantization_config has {name}={value!r}, of which {known} are supported")
    return value
