"""Linear functions whose transpose is written by hand.

A derivative is a linear function, and a backward pass its transpose. `jax.custom_vjp` takes the transpose alone, so
that there is no forward mode; under `jax.custom_jvp` JAX transposes by itself, which makes loops over blocks several
times slower and larger. With both given, all of JAX's transforms work, and each runs what was written for it: this is
`jax.custom_derivatives.linear_call`, which has neither `vmap` nor second derivatives.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jax.tree_util import PyTreeDef


def linear_map(run: Callable, back: Callable, given: Any, x: Any, **static: Hashable) -> Any:
    """Compute `run(given, x, **static)`, which is linear in x and has the transpose `back(given, y, **static)`.

    Args:
      run, back: module-level functions. y is like what `run` gives, and `back` gives what is like x.
      given, x: pytrees of arrays. Where x is None it is zero, and what `back` has for it is left out.

    >>> matrix, x = jnp.array([[0.0, -1.0], [1.0, 0.0]]), jnp.array([3.0, 5.0])
    >>> f = lambda x: linear_map(lambda a, x: a @ x, lambda a, y: y @ a, matrix, x)
    >>> jax.jvp(f, (x,), (x,))[1].tolist(), jax.vjp(f, x)[1](x)[0].tolist()
    ([-5.0, 3.0], [5.0, -3.0])
    """
    (residuals, tree), (inputs, shape) = jax.tree.flatten(given), jax.tree.flatten(x)
    out = jax.tree.structure(jax.eval_shape(partial(run, **static), given, x))
    present = tuple(not _absent(part) for part in jax.tree.leaves(x, is_leaf=_absent))
    forward = _Flat(run, (*static.items(),), (tree, shape))
    backward = _Flat(back, (*static.items(),), (tree, out), present)
    return jax.tree.unflatten(out, _bind(*residuals, *inputs, run=forward, back=backward, count=len(residuals)))


def in_one_piece(run: Callable, given: Any, **static: Hashable) -> Any:
    """Compute `run(given, **static)`, for rules of `jax.custom_jvp`.

    There JAX separates what is known from what will be transposed, and takes loops apart even where all is known: what
    does not change from turn to turn is computed outside, and stored.

    >>> float(in_one_piece(jnp.sum, jnp.arange(3.0)))
    3.0
    """
    return linear_map(_no_map, _no_map, given, (), function=run, **static)


def _no_map(given: Any, x: Any, *, function: Callable, **static: Hashable) -> Any:
    return function(given, **static)


def _absent(part: Any) -> bool:
    return part is None


@dataclass(frozen=True)
class _Flat:
    """A function of two pytrees as one of their leaves."""

    function: Callable
    static: tuple[tuple[str, Hashable], ...]
    trees: tuple[PyTreeDef, PyTreeDef]
    present: tuple[bool, ...] | None = None
    """Which of its results are wanted, absent ones counted too; None: all."""

    def __call__(self, *leaves: Any) -> list[Any]:
        first, second = self.trees
        given, x = first.unflatten(leaves[: first.num_leaves]), second.unflatten(leaves[first.num_leaves :])
        found = self.function(given, x, **dict(self.static))
        if self.present is None:
            return jax.tree.leaves(found)
        every = jax.tree.leaves(found, is_leaf=_absent)
        return [part for part, present in zip(every, self.present, strict=True) if present]


@dataclass(frozen=True)
class _Batched:
    """A function of a batch; what comes after the arguments whose batch axes are given has it first."""

    function: Callable
    axes: tuple[int | None, ...]

    def __call__(self, *leaves: Any) -> list[Any]:
        axes = *self.axes, *(0,) * (len(leaves) - len(self.axes))
        return jax.vmap(self.function, axes)(*leaves)


_linear_map = Primitive("linear_map")
_linear_map.multiple_results = True
_compiled = jax.jit(lambda run, *leaves: run(*leaves), static_argnums=0)
_linear_map.def_impl(lambda *leaves, run, **_: _compiled(run, *leaves))
_linear_map.def_abstract_eval(lambda *_, jaxpr, **__: jaxpr.out_avals)
mlir.register_lowering(_linear_map, mlir.lower_fun(lambda *leaves, jaxpr, **_: jaxpr_as_fun(jaxpr)(*leaves)))


def _bind(*leaves, run, back, count):
    """Apply `run` to `count` leaves of what is given and to those of x, so that others can look inside."""
    return _linear_map.bind(*leaves, jaxpr=jax.make_jaxpr(run)(*leaves), run=run, back=back, count=count)


def _jvp(leaves, tangents, *, run, back, count, **_):
    bind = partial(_bind, *leaves[:count], run=run, back=back, count=count)
    known = [type(tangent) is ad.Zero for tangent in tangents]
    found = []
    if not all(known[count:]):
        found.append(bind(*map(ad.instantiate_zeros, tangents[count:])))
    if moving := [place for place in range(count) if not known[place]]:
        # A second derivative: what is given changes too, and the function is differentiated as it is written.
        def fixed(*moved):
            every = dict(enumerate(leaves)) | dict(zip(moving, moved, strict=True))
            return run(*every.values())

        found.append(jax.jvp(fixed, *([values[place] for place in moving] for values in (leaves, tangents)))[1])
    return bind(*leaves[count:]), [sum(parts[1:], parts[0]) for parts in zip(*found, strict=True)]


def _transpose(pulls, *leaves, run, back, count, **_):
    found = _bind(*leaves[:count], *map(ad.instantiate_zeros, pulls), run=back, back=run, count=count)
    by = zip(leaves[count:], found, strict=True)
    return [None] * count + [pull if ad.is_undefined_primal(leaf) else None for leaf, pull in by]


def _batch(leaves, axes, *, run, back, count, **_):
    size = next(leaf.shape[axis] for leaf, axis in zip(leaves, axes, strict=True) if axis is not None)

    def first(leaf, axis):
        return jnp.broadcast_to(leaf, (size, *leaf.shape)) if axis is None else jnp.moveaxis(leaf, axis, 0)

    x = map(first, leaves[count:], axes[count:])
    run, back = _Batched(run, axes[:count]), _Batched(back, axes[:count])
    found = _bind(*leaves[:count], *x, run=run, back=back, count=count)
    return found, [0] * len(found)


ad.primitive_jvps[_linear_map] = _jvp
ad.primitive_transposes[_linear_map] = _transpose
batching.primitive_batchers[_linear_map] = _batch
