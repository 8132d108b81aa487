"""Weights as the Flax models of `transformers` 4 saved them: a msgpack of nested arrays, read under torch's names.

A file holds maps, arrays and nothing else; no code can be in it.
"""

import math
import mmap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import msgpack
import numpy as np

from flax_transformer.hub.file import Tensor

_ARRAY = 1
"""Flax's number for arrays among msgpack's own types."""
_CHUNKED = "__msgpack_chunked_array__"
"""In a map that stands for an array of more than a gibibyte."""
_DTYPES = {"bfloat16", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint32", "bool"}
_TRANSPOSED = {2: (1, 0), 3: (2, 1, 0), 4: (3, 2, 0, 1)}
"""Axes of Flax's kernels in torch's order: inputs before outputs there, outputs before inputs here."""


def open_flax(file: Path) -> dict[str, Tensor]:
    """Read the arrays of a file, under the names and in the layouts that torch has for them.

    Raises:
      ValueError: a broken file, or one that holds something else.
    """
    try:
        with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            # Without lists and with maps no longer than any model's, a length that lies takes no memory.
            tree = msgpack.unpackb(content, ext_hook=_array, max_array_len=0, max_map_len=2**20)
        if not isinstance(tree, dict):
            raise ValueError("it is no map")
        tree = tree["params"] if tree.keys() == {"params"} else tree
        return dict(_tensor(path, array) for path, array in _leaves(tree, ()))
    except (ValueError, TypeError, KeyError, OverflowError, OSError, msgpack.UnpackException) as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"{file} is not a whole msgpack file of Flax arrays: {reason}") from error


def _array(code: int, data: bytes) -> np.ndarray:
    if code != _ARRAY:
        raise ValueError(f"it holds what is no array, type {code}")
    shape, name, buffer = msgpack.unpackb(data, raw=True, max_array_len=16)
    name = name.decode("ascii")
    if name not in _DTYPES or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"it holds an array {name[:20]!r} {shape}")
    return np.frombuffer(buffer, jnp.dtype(name)).reshape(shape)


def _leaves(tree: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            value = _joined(value) if _CHUNKED in value else value
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        elif isinstance(value, np.ndarray) and isinstance(name, str):
            # Shards have whole paths for names.
            yield (*path, *name.split("/")), value
        else:
            raise ValueError(f"{'.'.join(path)}.{name} is no array but {value!r:.40}")


def _joined(parts: dict[str, Any]) -> np.ndarray:
    shape = [parts["shape"][str(i)] for i in range(len(parts["shape"]))]
    chunks = [parts["chunks"][str(i)] for i in range(len(parts["chunks"]))]
    whole = all(isinstance(chunk, np.ndarray) for chunk in chunks) and all(type(size) is int for size in shape)
    if not whole or min(shape, default=0) < 0 or math.prod(shape) != sum(chunk.size for chunk in chunks):
        raise ValueError(f"chunks do not make an array {shape}")
    return np.concatenate(chunks).reshape(shape)


def _tensor(path: tuple[str, ...], array: np.ndarray) -> tuple[str, Tensor]:
    """Name an array as torch does: a kernel, scale or embedding is a weight, and kernels are turned."""
    *parents, last = path
    axes = None
    if last == "kernel":
        axes = _TRANSPOSED.get(array.ndim, tuple(range(array.ndim)))
    if last in ("kernel", "scale", "embedding"):
        last = "weight"
    shape = array.shape if axes is None else tuple(array.shape[axis] for axis in axes)
    return ".".join((*parents, last)), Tensor(shape, str(array.dtype), partial(_turned, array, axes))


def _turned(array: np.ndarray, axes: tuple[int, ...] | None) -> np.ndarray:
    return array if axes is None else np.ascontiguousarray(array.transpose(axes))
