"""Look inside a pure function: `capture` returns the values it names on its way, without changing it.

A function marks a value by `jax.ad_checkpoint.checkpoint_name(x, name)`, which costs nothing when compiled. Reading
the marks is a transform like `jax.grad`; `inside.intervene` is the one that replaces them.
"""

from collections.abc import Callable
from typing import Any

from flax_transformer.ops.marked import Marked, Place


class UnmarkedError(ValueError):
    """A function marks nothing by the name that is asked for."""


def capture(f: Callable, name: str) -> Callable:
    """Make g with `g(*args) = (f(*args), values)`: the values that f marks by `name`, in program order.

    A value marked inside `jax.lax.scan` gets the loop axis in front, so the L layers of a stack are one array [L, …].
    g is as pure as f: `jit`, `vmap` and `grad` apply to it. Under `grad`, parts of f with a mark inside are
    differentiated as they are written, not by their custom rules or under `jax.checkpoint`.

    Args:
      f: a function of pytrees of arrays, modules among them.
      name: what f calls the values it marks; other marks are ignored.

    Raises:
      UnmarkedError: by g, when f marks nothing by that name.
      ValueError: by g, when a mark is where it may run any number of times: inside `while`, `cond` and the like.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from jax.ad_checkpoint import checkpoint_name
    >>> double = lambda x, _: (checkpoint_name(2 * x, "doubled"), None)
    >>> f = lambda x: jax.lax.scan(double, x, length=3)[0]
    >>> capture(f, "doubled")(jnp.float32(1))
    (Array(8., dtype=float32), [Array([2., 4., 8.], dtype=float32)])
    """

    def g(*args):
        result, values = capture_all(f, name.__eq__)(*args)
        if name not in values:
            marked = marks(f, *args)
            raise UnmarkedError(f"capture needs a name of what f marks: {', '.join(marked) or 'nothing'}; got {name!r}")
        return result, values[name]

    return g


def capture_all(f: Callable, chosen: Callable[[str], bool]) -> Callable:
    """Make g with `g(*args) = (f(*args), {name: values})` as `capture` does, for all names that are chosen.

    Raises:
      ValueError: by g, when a mark is where it may run any number of times.

    >>> import jax.numpy as jnp
    >>> from jax.ad_checkpoint import checkpoint_name
    >>> f = lambda x: checkpoint_name(checkpoint_name(x + 1, "more") / 2, "half")
    >>> capture_all(f, lambda name: True)(jnp.float32(1))[1]
    {'more': [Array(2., dtype=float32)], 'half': [Array(1., dtype=float32)]}
    """

    def g(*args):
        return Marked.of(f, args).run(args, chosen, {})

    return g


def marks(f: Callable, *args: Any) -> tuple[str, ...]:
    """Return the names that f marks values by when it is called so, each once, in program order.

    >>> from jax.ad_checkpoint import checkpoint_name
    >>> marks(lambda x: checkpoint_name(2 * x, "doubled"), 1.0)
    ('doubled',)
    """
    return tuple(dict.fromkeys(place.name for place in places(f, *args)))


def places(f: Callable, *args: Any) -> list[Place]:
    """Return where f marks values when it is called so, in program order: names, shapes, and the scans around them.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from jax.ad_checkpoint import checkpoint_name
    >>> double = lambda x, _: (checkpoint_name(2 * x, "doubled"), None)
    >>> places(lambda x: jax.lax.scan(double, x, length=3), jnp.ones(2))
    [Place(name='doubled', loops=(3,), shape=(2,), dtype=dtype('float32'))]
    """
    return Marked.of(f, args).places()
