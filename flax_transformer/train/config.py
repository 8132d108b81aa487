"""Configs as JSON and back: frozen dataclasses, named by type, compared field by field.

Config files are data: a name is looked up in this package, or in those the reader allows besides, and nowhere else.
"""

import dataclasses
import importlib
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from flax_transformer.data.json_line import strict_json
from flax_transformer.listing import listed


def parse_object(content: bytes, path: Path) -> dict[str, Any]:
    """Parse a file that must hold one JSON object, as strictly as the standard says: nothing is guessed.

    Raises:
      ValueError: as `parse_json`, or no object; names the file.
    """
    data = parse_json(content, path)
    if not isinstance(data, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(data).__name__}")
    return data


def parse_json(content: bytes, path: Path) -> Any:
    """Parse a file of JSON, as strictly as the standard says: nothing is guessed.

    Raises:
      ValueError: not JSON, a key twice with two values, or a number that is none; names the file.
    """
    try:
        return strict_json(content.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error


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


def from_json(
    data: Any, packages: tuple[str, ...] = ("flax_transformer",), modules: Mapping[str, types.ModuleType] = {}
) -> Any:
    """Rebuild what `to_json` wrote, validating it on the way.

    Args:
      packages: where types and functions may come from; add your own for a config that names yours.
      modules: imported modules besides, by the names that the config has for them, as `__main__`.

    Raises:
      ValueError: when a name is not defined in one of `packages`, or a field does not exist.
    """
    if isinstance(data, list):
        return tuple(from_json(item, packages, modules) for item in data)
    if not isinstance(data, dict):
        return data
    if "function" in data:
        return _find(data["function"], packages, modules)
    if "type" not in data:
        return {key: from_json(item, packages, modules) for key, item in data.items()}
    kind = _find(data["type"], packages, modules)
    if not dataclasses.is_dataclass(kind):
        raise ValueError(f"a config type must be a dataclass, got {data['type']}")
    known = {field.name for field in dataclasses.fields(kind)}
    unknown = sorted(set(data) - known - {"type"})
    if unknown:
        raise ValueError(f"{data['type']} has no field {listed(unknown)}; it has {', '.join(sorted(known))}")
    hints = get_type_hints(kind)
    found = {name: from_json(item, packages, modules) for name, item in data.items() if name != "type"}
    wrong = next((name for name, value in found.items() if not fits(value, hints[name])), None)
    if wrong is not None:
        hint = getattr(hints[wrong], "__name__", str(hints[wrong]))
        raise ValueError(f"{data['type']} must have {wrong} of type {hint}, got {data[wrong]!r:.100}")
    return kind(**found)


def modules_in(data: Any, packages: tuple[str, ...] = ("flax_transformer",)) -> list[str]:
    """List the modules outside `packages` that the JSON of a config names, each once.

    >>> modules_in({"type": "flax_transformer.task.recipe:Recipe", "data": {"type": "__main__:Mine"}})
    ['__main__']
    """
    if isinstance(data, list):
        return list(dict.fromkeys(name for item in data for name in modules_in(item, packages)))
    if not isinstance(data, dict):
        return []
    own = [str(data[key]).partition(":")[0] for key in ("type", "function") if isinstance(data.get(key), str)]
    inner = modules_in([*data.values()], packages)
    return list(dict.fromkeys([*(name for name in own if not _inside(name, packages)), *inner]))


def outdated(data: Any) -> str | None:
    """Return what in the JSON of a config is of another version of this package: a type or a field that it lacks."""
    if not isinstance(data, dict):
        return next(filter(None, map(outdated, data)), None) if isinstance(data, list) else None
    name = data.get("type")
    if isinstance(name, str) and name.startswith(f"{__package__.partition('.')[0]}."):
        try:
            kind = _find(name, (__package__.partition(".")[0],))
        except ValueError:
            return f"there is no {name}"
        if dataclasses.is_dataclass(kind):
            known = {field.name for field in dataclasses.fields(kind)}
            if gone := sorted(data.keys() - known - {"type"}):
                return f"{kind.__name__} has no {listed(gone)}"
    return next(filter(None, map(outdated, data.values())), None)


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of the type that a field declares; types that say more than JSON can hold, fit.

    >>> fits(3, float), fits(True, int), fits(("a", 1), tuple[str, ...]), fits("x", Literal["x", "y"] | None)
    (True, False, False, True)
    """
    kind, options = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        return any(fits(value, option) for option in options)
    if Callable in (hint, kind):
        return callable(value)
    if kind is Literal:
        return any(value == option and type(value) is type(option) for option in options)
    if kind is tuple:
        items = options[:1] * len(value) if options[1:] == (...,) and isinstance(value, tuple) else options
        return isinstance(value, tuple) and len(value) == len(items) and all(map(fits, value, items))
    if hint is float:
        return type(value) in (int, float)
    if hint in (bool, int, str, types.NoneType):
        return type(value) is hint
    return isinstance(value, hint) if dataclasses.is_dataclass(hint) else True


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


def _find(name: Any, packages: tuple[str, ...], modules: Mapping[str, types.ModuleType] = {}) -> Any:
    """Look up a name; what a module merely imported from elsewhere, such as `os`, is not found in it."""
    module, _, attribute = str(name).partition(":")
    if module in modules:
        found = getattr(modules[module], attribute, None)
        if getattr(found, "__module__", None) != modules[module].__name__:
            raise ValueError(f"config names {name}, which {modules[module].__file__} does not define")
        return found
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
