"""What every config is: a frozen dataclass with keywords only, whose `help` says what its fields mean."""

import ast
import functools
import inspect
import itertools
import linecache
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar, dataclass_transform, get_args

Config = TypeVar("Config", bound=type)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def frozen(cls: Config) -> Config:
    """Make a class a frozen dataclass with keywords only; the strings below its fields become part of its docstring.

    >>> @frozen
    ... class Heads:
    ...     '''How attention is split.'''
    ...     count: int = 8
    >>> Heads(count=4)
    Heads(count=4)
    """
    made = dataclass(frozen=True, kw_only=True)(cls)
    made.__doc__ = _Docstring(made.__doc__)
    if mixed := [field.name for field in fields(made) if all(kind in get_args(field.type) for kind in (int, bool))]:
        made.__eq__ = _telling_true_from_one(made.__eq__, mixed)
    return made


def _telling_true_from_one(equal: Callable[[Any, Any], bool], names: list[str]) -> Callable[[Any, Any], bool]:
    """Return an equality for which True is not 1 in these fields.

    Configs decide which program runs: jit would take the one it has of `unroll=1` for `unroll=True`.
    """

    def same(self: Any, other: Any) -> Any:
        found = equal(self, other)
        return found if found is not True else all(type(getattr(self, n)) is type(getattr(other, n)) for n in names)

    return same


class _Docstring:
    """A docstring with the fields of its class, read from the source when somebody asks."""

    def __init__(self, text: str):
        self.text = text

    def __get__(self, instance: object, owner: type) -> str:
        lines = [textwrap.indent(f"{name}: {meaning}", "  ") for name, meaning in meanings(owner).items()]
        return "\n".join([inspect.cleandoc(self.text), "", "Attributes:", *lines]) if lines else self.text


@functools.cache
def meanings(cls: type) -> dict[str, str]:
    """Return the string below each field of a class and of those it inherits from, by name, on one line each."""
    found: dict[str, str] = {}
    for kind in reversed(cls.__mro__[:-1]):
        for field, below in itertools.pairwise(_body(kind)):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                    found[name] = " ".join(meaning.split())
    return found


def _body(cls: type) -> list[ast.stmt]:
    """Return the statements of a class; none where there is no file to read them in."""
    try:
        body = _parsed(inspect.getfile(cls)).body
    except (OSError, TypeError, SyntaxError):
        return []
    scopes = (ast.ClassDef, ast.FunctionDef)
    for name in cls.__qualname__.replace(".<locals>", "").split("."):
        body = next((each.body for each in body if isinstance(each, scopes) and each.name == name), [])
    return body


@functools.cache
def _parsed(file: str) -> ast.Module:
    """Parse a file once for all its classes, which `inspect.getsource` would do for each."""
    return ast.parse("".join(linecache.getlines(file)))
