"""Configs as JSON and back: frozen dataclasses, named by type, compared field by field.

Config files are data: a name is looked up in this package, or in those the reader allows besides, and nowhere else.
"""

import dataclasses
import importlib
from typing import Any


def to_json(value: Any) -> Any:
    """Turn a config into JSON-able data; dataclasses and functions are named by where they are defined."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": _where(type(value)), **fields}
    if callable(value):
        return {"function": _where(value)}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"a config may hold numbers, strings, tuples, functions and dataclasses, got {type(value).__name__}"
    )


def from_json(data: Any, packages: tuple[str, ...] = ("flax_transformer",)) -> Any:
    """Rebuild what `to_json` wrote, validating it on the way.

    Args:
      packages: where types and functions may come from; add your own for a config that names yours.

    Raises:
      ValueError: when a name is not defined in one of `packages`, or a field does not exist.
    """
    if isinstance(data, list):
        return tuple(from_json(item, packages) for item in data)
    if not isinstance(data, dict):
        return data
    if "function" in data:
        return _find(data["function"], packages)
    if "type" not in data:
        return {key: from_json(item, packages) for key, item in data.items()}
    kind = _find(data["type"], packages)
    if not dataclasses.is_dataclass(kind):
        raise ValueError(f"a config type must be a dataclass, got {data['type']}")
    known = {field.name for field in dataclasses.fields(kind)}
    unknown = sorted(set(data) - known - {"type"})
    if unknown:
        raise ValueError(f"{data['type']} has no field {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    return kind(**{name: from_json(item, packages) for name, item in data.items() if name != "type"})


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """List where two JSON configs differ, as `path: old → new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = [*old, *(name for name in new if name not in old)]
        nested = (
            differences(old.get(n, "nothing"), new.get(n, "nothing"), f"{path}.{n}" if path else n) for n in names
        )
        return [line for lines in nested for line in lines]
    return [] if old == new else [f"{path}: {old} → {new}"]


def _where(thing: Any) -> str:
    if thing.__qualname__ == "<lambda>" or "<locals>" in thing.__qualname__:
        raise TypeError(f"a config may hold only module-level functions and classes, got {thing.__qualname__}")
    return f"{thing.__module__}:{thing.__qualname__}"


def _find(name: Any, packages: tuple[str, ...]) -> Any:
    """Look a name up; what a module merely imported from elsewhere, such as `os`, is not found in it."""
    module, _, attribute = str(name).partition(":")
    if not _inside(module, packages):
        raise ValueError(f"a config may name what is in {', '.join(packages)}, got {name}")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        raise ValueError(f"config names {name}, but there is no module {module}") from error
    if found is None:
        raise ValueError(f"config names {name}, but {module} has no {attribute or 'empty name'}")
    if not _inside(getattr(found, "__module__", ""), packages):
        raise ValueError(f"a config may name what is in {', '.join(packages)}, got {name}, which is not defined there")
    return found


def _inside(module: Any, packages: tuple[str, ...]) -> bool:
    return str(module).partition(".")[0] in packages
