"""Calls outside of `jax.jit`: what they compile, once, and what is kept between them."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import numpy as np


def reused(function: Callable) -> Callable:
    """Have eager calls run one program for all arguments of the same shapes.

    A loop (`jax.lax.scan`) or a map over devices whose body is made anew in each call would else be compiled in each,
    and so would its derivative. Inside of `jax.jit` nothing changes. What is no array among the arguments is static;
    where such a thing has no hash, nothing is reused.
    """

    def run(treedef: Any, rest: tuple, arrays: list) -> Any:
        arrays = iter(arrays)
        args, kwargs = treedef.unflatten([next(arrays) if kind is None else leaf for kind, leaf in rest])
        return function(*args, **kwargs)

    # Eager derivatives take an inlined program apart, and then compile its loops again.
    written, called = (jax.jit(run, static_argnums=(0, 1), inline=inline) for inline in (True, False))

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, treedef = jax.tree.flatten((args, kwargs))
        arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array | np.ndarray)]
        # With their types, as 1 == True.
        rest = tuple(
            (None, None) if isinstance(leaf, jax.Array | np.ndarray) else (type(leaf), leaf) for leaf in leaves
        )
        try:
            hash((treedef, rest))
        except TypeError:
            return function(*args, **kwargs)
        return (written if _writes_program() else called)(treedef, rest, arrays)

    return call


def _writes_program() -> bool:
    """Whether operations are written into a program, as in `jax.jit`, or done: eagerly, in eager derivatives too."""
    return isinstance(jax.lax.full((), 0), jax.core.Tracer)


def kept(function: Callable[[Any], Any]) -> property:
    """Make a property that is computed from `self.model`, and again once an array of the model has been replaced."""
    name = f"_{function.__name__}_kept"

    def get(self: Any) -> Any:
        arrays = jax.tree.leaves(self.model)
        before, value = self.__dict__.get(name, ([], None))
        if len(before) != len(arrays) or any(old is not new for old, new in zip(before, arrays, strict=True)):
            value = function(self)
            self.__dict__[name] = arrays, value
        return value

    return property(get, doc=function.__doc__)
