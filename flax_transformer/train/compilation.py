"""What XLA compiles, and why again: what a function is called with that decides which program runs, and its changes."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

COMPILED = "/jax/core/compile/backend_compile_duration"
FOUND = "/jax/compilation_cache/cache_hits"
MOST_CAUSES = 4
"""Changes that are spelled out at most."""


class Compilations:
    """Count the programs XLA is asked for within a `with` block, found in the persistent cache or not."""

    def __init__(self) -> None:
        self.count = 0
        self.found = 0
        """Those of them that came from the persistent cache."""
        self.seconds = 0.0
        """That they took together."""
        self.names: list[str] = []
        """Of the functions, where JAX tells."""

    def _compiled(self, event: str, seconds: float, **details: Any) -> None:
        if event == COMPILED:
            self.count += 1
            self.seconds += seconds
            self.names.append(str(details.get("fun_name", "a function")))

    def _found(self, event: str, **details: Any) -> None:
        self.found += event == FOUND

    def __enter__(self) -> "Compilations":
        jax.monitoring.register_event_duration_secs_listener(self._compiled)
        jax.monitoring.register_event_listener(self._found)
        return self

    def __exit__(self, *error: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._compiled)
        jax.monitoring.unregister_event_listener(self._found)


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """What JAX knows of an argument when it looks for a program."""

    kind: str
    """The type of its elements, or its own."""
    shape: tuple[int, ...] | None = None
    """None: it is no array."""
    weak: bool = False
    """Whether it is an array of a weak type."""
    place: str = ""
    value: Any = dataclasses.field(default=None, compare=False)
    """Of what is no array; it decides where it is static alone."""

    @classmethod
    def of(cls, value: Any) -> "_Leaf":
        if not isinstance(value, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
            return cls(type(value).__name__, value=value)
        aval = jax.typeof(value)  # of an array whose memory was taken over, too
        committed = getattr(value, "committed", False)
        return cls(
            str(aval.dtype),
            tuple(aval.shape),
            bool(aval.weak_type),
            place=_spell_place(value.sharding) if committed else "",
            value=None if hasattr(value, "dtype") else value,
        )

    def __str__(self) -> str:
        weak = " (weak type)" if self.weak else ""
        return self.kind if self.shape is None else f"{self.kind}{list(self.shape)}{weak}"


def _spell_place(sharding: Any) -> str:
    return str(getattr(sharding, "spec", None) or f"{len(sharding.device_set)} device(s)")


class Causes:
    """Remember what a function was given whenever it was compiled, and say what is new the next time."""

    def __init__(self) -> None:
        self._seen: list[Any] = []

    def __call__(self, arguments: Mapping[str, Any]) -> str | None:
        """Return in a line why a function is compiled that is given this; None the first time.

        It may be asked after the call, of arguments that were donated.

        Args:
          arguments: by name.
        """
        given = jax.tree.map(_Leaf.of, dict(arguments))
        found = min((changes(before, given) for before in self._seen[::-1]), key=len, default=None)
        self._seen.append(given)
        if found is None:
            return None
        nothing = "nothing of its arguments: a setting of JAX has changed, or its caches were emptied"
        return _spell(found) if found else nothing


class Change(NamedTuple):
    """How a leaf or a static field differs."""

    path: str
    how: str
    axes: int | None = None
    """How many an array has before and after whose shape alone has changed."""

    def __str__(self) -> str:
        return f"{self.path}: {self.how}"


def _spell(found: list[Change]) -> str:
    """Write the first changes in a line; where shapes alone have changed, that with the most axes stands for all."""
    if shapes := all(change.axes is not None for change in found):
        found = sorted(found, key=lambda change: change.axes, reverse=True)
    most = 1 if shapes else MOST_CAUSES
    more = f", and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(map(str, found[:most])) + more


class Watched:
    """A function that notices, within a `with` block, when a call had to be compiled, and says why but the first time.

    Args:
      function: jitted.
      names: of its arguments; those it gives them itself by default.
    """

    def __init__(self, function: Callable, names: Sequence[str] = ()):
        self._function, self._names, self._why = function, names, Causes()
        self.compilations = Compilations()
        self.cause: str | None = None
        """Why the last call was compiled; None: it was not, or nothing was before."""
        self.took = 0.0
        """Seconds that compiling took in it."""

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        count, seconds = self.compilations.count, self.compilations.seconds
        result = self._function(*arguments)
        compiled, self.took = self.compilations.count > count, self.compilations.seconds - seconds
        self.cause = self.knows(*arguments) if compiled else None
        return result

    def knows(self, *arguments: Any) -> str | None:
        """Remember a call that was compiled; say why it was, if it was not the first."""
        names = self._names or _parameters(self._function, arguments)
        return self._why(dict(zip(names, arguments, strict=True)))

    def __enter__(self) -> "Watched":
        self.compilations.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.compilations.__exit__(*error)


def _parameters(function: Callable, arguments: tuple) -> list[str]:
    """Name arguments as a function does, where it has a name for each."""
    try:
        names = list(inspect.signature(function).bind(*arguments).arguments)
    except (TypeError, ValueError):
        names = []
    return names if len(names) == len(arguments) else [f"argument {i}" for i in range(len(arguments))]


def changes(before: Any, after: Any) -> list[Change]:
    """List how two trees of what was given differ: leaves, or static fields where all leaves are the same."""
    old, new = (dict(_leaves(tree)) for tree in (before, after))
    found = [_change(path, old[path], leaf) for path, leaf in new.items() if old.get(path, leaf) != leaf]
    found += [Change(path, f"new, {leaf}") for path, leaf in new.items() if path not in old]
    found += [Change(path, f"gone, was {leaf}") for path, leaf in old.items() if path not in new]
    if not found:
        found = list(_static(before, after, ""))
    if not found:
        values = ((path, old[path].value, new[path].value) for path in new)
        found = [Change(path, f"{one!r} → {other!r}") for path, one, other in values if not _same(one, other)]
    return found


def _change(path: str, old: _Leaf, new: _Leaf) -> Change:
    if str(old) == str(new):
        return Change(path, f"laid out by {old.place or 'nobody'} → {new.place or 'nobody'}")
    reshaped = (old.kind, old.weak) == (new.kind, new.weak)
    return Change(path, f"{old} → {new}", axes=len(old.shape) + len(new.shape) if reshaped else None)


def _leaves(tree: Any) -> Iterator[tuple[str, _Leaf]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield jax.tree_util.keystr(path, simple=True, separator="."), leaf


def _static(old: Any, new: Any, path: str) -> Iterator[Change]:
    """Go down two trees with the same leaves, and tell what is static and differs."""
    parts = [jax.tree_util.default_registry.flatten_one_level_with_keys(tree) for tree in (old, new)]
    if isinstance(old, _Leaf) or None in parts:
        return
    if type(old) is not type(new):
        yield Change(path, f"{type(old).__name__} → {type(new).__name__}")
        return
    (inside, fixed), (others, changed) = parts
    yield from _differing(_by_name(fixed), _by_name(changed), path)
    for (key, one), (_, other) in zip(inside, others, strict=True):
        yield from _static(one, other, _join(path, jax.tree_util.keystr((key,), simple=True)))


def _by_name(fixed: Any) -> Any:
    """Name the static fields of a Flax module, which keeps names of parts, names of fields, and these fields."""
    if isinstance(fixed, tuple) and len(fixed) == 3 and isinstance(fixed[1], tuple):
        fields = dict(zip(fixed[1], fixed[2], strict=False))
        return {name: value for name, value in fields.items() if not str(name).startswith("_")}
    return fixed


def _differing(old: Any, new: Any, path: str) -> Iterator[Change]:
    if _same(old, new):
        return
    parts = ()
    if type(old) is type(new) and dataclasses.is_dataclass(old):
        parts = [(each.name, getattr(old, each.name), getattr(new, each.name)) for each in dataclasses.fields(old)]
    elif isinstance(old, dict) and isinstance(new, dict):
        parts = [(name, old.get(name), new.get(name)) for name in {**old, **new}]
    elif isinstance(old, tuple | list) and isinstance(new, tuple | list) and len(old) == len(new):
        whole = not any(isinstance(one, tuple | list | dict) or dataclasses.is_dataclass(one) for one in (*old, *new))
        parts = [] if whole else [("", *pair) for pair in zip(old, new, strict=True)]
    if not parts:
        yield Change(path, f"{old!r:.80} → {new!r:.80}")
    for name, one, other in parts:
        yield from _differing(one, other, _join(path, name))


def _join(path: str, name: str) -> str:
    return ".".join(filter(None, (path, name)))


def _same(old: Any, new: Any) -> bool:
    return old is new or (type(old) is type(new) and bool(np.all(old == new)))
