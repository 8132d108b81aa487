"""What data and transforms are, in words and digests that are equal across runs."""

import dataclasses
import hashlib
import json
import types
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Shaped


def digest(*parts: str | Shaped[np.ndarray, "..."]) -> str:
    """Return the SHA-256 of texts and arrays, in order, in hexadecimal."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part.encode() if isinstance(part, str) else np.ascontiguousarray(part))
    return sha.hexdigest()


def name_data(items: Any) -> str:
    """Name a sequence of examples: by its own ``fingerprint``, as a range, or by the SHA-256 of its items as JSON.

    An item that JSON does not know is written by its own ``fingerprint``, or as an array.
    """
    if hasattr(items, "fingerprint"):
        return items.fingerprint
    if isinstance(items, range):
        return repr(items)
    lines = (json.dumps(items[index], sort_keys=True, default=_plain) for index in range(len(items)))
    sha = hashlib.sha256()
    for line in lines:
        sha.update(f"{line}\n".encode())
    return sha.hexdigest()


def name_function(function: Callable[..., Any]) -> str:
    """Name a transform or a collation: by its own ``fingerprint``, its dataclass fields, or its module.

    >>> name_function(json.dumps)
    'json.dumps'

    Raises:
        ValueError: a lambda, a nested function or another object whose name says nothing about what it does.
    """
    if hasattr(function, "fingerprint"):
        return function.fingerprint
    if dataclasses.is_dataclass(function):
        fields = _spelled(function)
        return fields if len(fields) <= 300 else f"{type(function).__name__} {digest(fields)}"
    name = getattr(function, "__qualname__", "<object>")
    if "<" in name:
        raise ValueError(f"a transform must be a frozen dataclass or a module-level function, got {function!r}")
    return f"{function.__module__}.{name}"


def _spelled(value: Any) -> str:
    """Spell a value as `repr` does, but functions by their names, as their addresses are of one process."""
    if " at 0x" not in (said := repr(value)):
        return said
    if isinstance(value, types.FunctionType):
        return name_function(value)
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_spelled, value))})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.repr]
        given = ", ".join(f"{name}={_spelled(getattr(value, name))}" for name in fields)
        return f"{type(value).__qualname__}({given})"
    return said


def _plain(value: Any) -> Any:
    return value.fingerprint if hasattr(value, "fingerprint") else np.asarray(value).tolist()
