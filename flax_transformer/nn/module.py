"""What every module of this library is: Flax's, with a signature that `help`, `inspect` and editors can read."""

import dataclasses
import inspect
from functools import cache
from typing import Any

from flax import nnx


class _Signature:
    """The signature of a class's `__init__`; Flax's metaclass alone would show `*args, **kwargs`."""

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")  # calling a module is another thing than making one
        made = inspect.signature(owner.__init__)
        return made.replace(parameters=list(made.parameters.values())[1:], return_annotation=inspect.Signature.empty)


class Module(nnx.Module):
    """A pytree whose call is a pure function: see `flax.nnx.Module`.

    >>> class Scale(Module):
    ...     def __init__(self, width: int, *, rngs: nnx.Rngs):
    ...         self.scale = nnx.Param(rngs.normal((width,)))
    >>> inspect.signature(Scale)
    <Signature (width: int, *, rngs: flax.nnx.rnglib.Rngs)>
    """

    __signature__ = _Signature()

    def __new__(cls, *args: Any, **kwargs: Any) -> "Module":
        """Refuse the config of another module.

        Raises:
          ValueError: says which config it is made from.
        """
        expected = _config_of(cls)
        given = kwargs.get("cfg", args[0] if args else _Absent)
        if expected is not None and given is not _Absent and not isinstance(given, expected):
            found = type(given).__name__ if dataclasses.is_dataclass(given) else repr(given)
            raise ValueError(f"{cls.__name__} is made from {_article(expected.__name__)}, got {found}")
        return super().__new__(cls)


class _Absent:
    """In place of what is not given."""


@cache
def _config_of(cls: type) -> type | None:
    """Tell what class the argument `cfg` of a module must have; None where it does not say."""
    parameter = inspect.signature(cls.__init__).parameters.get("cfg")
    return parameter.annotation if parameter is not None and inspect.isclass(parameter.annotation) else None


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
