"""Change what a pure function computes on its way: `intervene` replaces the values that it marks by name.

It is the counterpart of `ops.capture`, by the same names. An intervention is a pytree of edits, so `vmap` tries many,
and `grad` goes through them.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flax_transformer.ops.marked import Marked, Place

Interventions = Mapping[str, Any]
"""By name an edit, or where a function marks several values so, a sequence with an edit or None for each of them."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Replace:
    """Put a value in the place of the marked one, everywhere or where a mask says."""

    value: Any
    """An array that broadcasts to the marked value; of a value inside a scan with the loop's axis in front."""
    where: Any = None
    """Bool, broadcasts likewise."""

    def __call__(self, x: Array) -> Array:
        """Return what takes the place of x."""
        value = jnp.asarray(self.value).astype(x.dtype)
        return jnp.broadcast_to(value, x.shape) if self.where is None else jnp.where(self.where, value, x)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Scale:
    """Multiply the marked value: by 0 what is to be switched off."""

    factor: Any
    """An array that broadcasts to the marked value; of a value inside a scan with the loop's axis in front."""

    def __call__(self, x: Array) -> Array:
        """Return what takes the place of x."""
        return x * jnp.asarray(self.factor).astype(x.dtype)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Add:
    """Add to the marked value, as a steering vector."""

    amount: Any
    """An array that broadcasts to the marked value; of a value inside a scan with the loop's axis in front."""

    def __call__(self, x: Array) -> Array:
        """Return what takes the place of x."""
        return x + jnp.asarray(self.amount).astype(x.dtype)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Apply:
    """Apply a function of the marked value, and of operands that are sliced as edits are."""

    function: Callable[..., Any] = field(metadata={"static": True})
    """`function(x, *operands)`, a module-level function where programs are to be reused."""
    operands: tuple[Any, ...] = ()

    def __call__(self, x: Array) -> Array:
        """Return what takes the place of x."""
        return self.function(x, *self.operands)


def intervene(f: Callable) -> Callable:
    """Make g with `g(edits, *args)`: what f returns where the values that it marks are edited on the way.

    `g({}, *args)` is `f(*args)`, the same program. Several edits may be tried by `jax.vmap(g, in_axes=(0, None))`, and
    `ops.capture(partial(g, edits), name)` shows what comes of them. Edits of a value inside `jax.lax.scan` have an
    entry for each turn, or one for all, on the first axis of their leaves: those of a stack of layers are [L, …].

    Args:
      f: a function of pytrees of arrays, modules among them.

    Raises:
      ValueError: by g, a name that f does not mark, more edits than there are values of that name, an edit that changes
        a shape, or a mark inside `while`, `cond` and the like.

    >>> from jax.ad_checkpoint import checkpoint_name
    >>> double = lambda x, _: (checkpoint_name(2 * x, "doubled"), None)
    >>> f = lambda x: jax.lax.scan(double, x, length=3)[0]
    >>> float(f(1.0)), float(intervene(f)({"doubled": Add(jnp.array([0.0, 1.0, 0.0]))}, 1.0))
    (8.0, 10.0)
    """

    def g(edits: Interventions, *args):
        if not edits:
            return f(*args)
        marked = Marked.of(f, args)
        return marked.run(args, lambda name: False, _by_place(edits, marked.places()))[0]

    return g


def starting_at(f: Callable, name: str, place: int = 0) -> Callable:
    """Make g with `g(value, *args)`: what f returns if a value that it marks were this, a function to differentiate.

    Args:
      place: which of the values of that name, in program order.

    >>> from jax.ad_checkpoint import checkpoint_name
    >>> g = starting_at(lambda x: checkpoint_name(x + 1, "more") ** 2, "more")
    >>> float(g(5.0, 0.0)), float(jax.grad(g)(5.0, 0.0))
    (25.0, 10.0)
    """

    def g(value, *args):
        return intervene(f)({name: [*[None] * place, Replace(value)]}, *args)

    return g


def _by_place(edits: Interventions, places: Sequence[Place]) -> dict[str, list]:
    """Return an edit or None for each place."""
    there, found = Counter(place.name for place in places), {}
    for name, each in edits.items():
        if name not in there:
            raise ValueError(f"an edit needs a name of what f marks: {', '.join(there) or 'nothing'}; got {name!r}")
        each = list(each) if isinstance(each, Sequence) else [each]
        several = isinstance(edits[name], Sequence)
        if len(each) > there[name] or (there[name] > 1 and not several):
            rule = f"{name} is marked at {there[name]} places, in a sequence with an edit or None for each"
            raise ValueError(f"{rule}; got {len(each) if several else 'a single edit'}")
        found[name] = each + [None] * (there[name] - len(each))
    return found
