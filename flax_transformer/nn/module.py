"""What every module of this library is: Flax's, with a signature that `help`, `inspect` and editors can read.

What a module computes is named by the module, in programs and so in profiles: see `jax.named_scope`.
"""

import dataclasses
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any

import jax
from flax import nnx

from flax_transformer.parallel.explicit import implicit

_inside: ContextVar[tuple] = ContextVar("inside", default=())


class _Signature:
    """The signature of a class's `__init__`; Flax's metaclass alone would show `*args, **kwargs`."""

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")  # calling a module is another thing than making one
        made = inspect.signature(owner.__init__)
        return made.replace(parameters=list(made.parameters.values())[1:], return_annotation=inspect.Signature.empty)


class Module(nnx.Module):
    """A pytree whose call is a pure function: see `flax.nnx.Module`.

    One whose leaves are labels in place of arrays, made by `jax.tree.map`, may be given to Optax as it is.

    >>> class Scale(Module):
    ...     def __init__(self, width: int, *, rngs: nnx.Rngs):
    ...         self.scale = nnx.Param(rngs.normal((width,)))
    >>> inspect.signature(Scale)
    <Signature (width: int, *, rngs: flax.nnx.rnglib.Rngs)>
    """

    __signature__ = _Signature()

    def __init_subclass__(cls, **options: Any) -> None:
        """Have the methods of a kind of module name what they compute."""
        super().__init_subclass__(**options)
        for name, method in list(vars(cls).items()):
            if inspect.isfunction(method) and (name == "__call__" or not name.startswith("_")):
                setattr(cls, name, labels_or(_named(method)) if name == "__call__" else _named(method))

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


def labels_or(call: Callable) -> Callable:
    """Return a tree of labels as it is where it is called with parameters; else do what `call` does.

    `optax.partition` calls labels that can be called, as a function from parameters to labels. A model whose leaves are
    labels is such labels and can be called, so it is the function that always gives them.
    """

    @wraps(call)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and type(args[0]) is type(self) and _are_labels(self):
            return self
        return call(self, *args, **kwargs)

    return run


def _are_labels(tree: Any) -> bool:
    return not any(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(tree))


def _named(method: Callable) -> Callable:
    """Have a method's operations named by its module: by the attribute it is of the module around, or its class.

    On a mesh with Explicit axes the compiler lays out what is computed.
    """
    run = implicit()(method)

    @wraps(method)
    def call(self: Module, *args: Any, **kwargs: Any) -> Any:
        around = _inside.get()
        if around and around[-1] is self:
            return run(self, *args, **kwargs)
        before = _inside.set((*around, self))
        try:
            with jax.named_scope(_attribute(self, around)):
                return run(self, *args, **kwargs)
        finally:
            _inside.reset(before)

    return call


def _attribute(module: Module, around: tuple) -> str:
    names = (name for outer in reversed(around) for name, part in vars(outer).items() if part is module)
    return next(names, type(module).__name__)


class _Absent:
    """In place of what is not given."""


@cache
def _config_of(cls: type) -> type | None:
    """Return what class the argument `cfg` of a module must have; None where it does not say."""
    parameter = inspect.signature(cls.__init__).parameters.get("cfg")
    return parameter.annotation if parameter is not None and inspect.isclass(parameter.annotation) else None


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
