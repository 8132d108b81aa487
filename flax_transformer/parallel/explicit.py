"""Meshes with Explicit axes, as `jax.make_mesh` makes them: inside of our functions the compiler lays arrays out."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec, reshard, use_abstract_mesh


def implicit(like: str | None = None) -> Callable[[Callable], Callable]:
    """Make a decorator for functions whose arrays may be split over a mesh with Explicit axes.

    There they run as on one with Auto axes, and their results are split again: what has the shape of an argument as
    that one is, all else by the leading axes it has in common with the argument `like`. Other calls are left alone.

    Args:
      like: name of an argument; of methods, with None, the first array after `self` that is split. A method that is
        given a function is then left alone too, as nobody can tell which arrays that knows.
    """

    def decorate(function: Callable) -> Callable:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            leaves = jax.tree.leaves((args, kwargs))
            split = [leaf for leaf in leaves if _is_split(leaf)]
            if not split or (like is None and any(map(callable, leaves))):
                return function(*args, **kwargs)
            mesh = jax.typeof(split[0]).sharding.mesh
            explicit = (name for name, kind in _kinds(mesh) if kind == AxisType.Explicit)
            with use_abstract_mesh(mesh.update_axis_types(dict.fromkeys(explicit, AxisType.Auto))):
                args_in, kwargs_in = jax.tree.map(lambda leaf: _lay(leaf, PartitionSpec()), (args, kwargs))
                made = function(*args_in, **kwargs_in)
            given = (args[1:], kwargs) if like is None else signature.bind(*args, **kwargs).arguments[like]
            arrays = [leaf for leaf in jax.tree.leaves(given) if isinstance(leaf, jax.Array)]
            lead = next(filter(_is_split if like is None else lambda leaf: True, arrays), None)
            places = {leaf.shape: jax.typeof(leaf).sharding.spec for leaf in split}
            with use_abstract_mesh(mesh):
                return jax.tree.map(lambda leaf: _lay(leaf, places.get(leaf.shape, _shared(leaf, lead))), made)

        return call

    return decorate


def laid_as(tree: Any, like: Any) -> Any:
    """Split arrays over axes of which JAX keeps account as those of `like` are; leave all others alone.

    Args:
      tree: arrays.
      like: a tree of the same structure.
    """

    def lay(leaf: Any, given: Any) -> Any:
        place = jax.typeof(given).sharding
        with use_abstract_mesh(place.mesh):
            return _lay(leaf, place.spec) if any(kind == AxisType.Explicit for _, kind in _kinds(place.mesh)) else leaf

    return jax.tree.map(lay, tree, like)


def _kinds(mesh: AbstractMesh) -> zip:
    return zip(mesh.axis_names, mesh.axis_types, strict=True)


def _is_split(leaf: Any) -> bool:
    """Return whether an array is split over axes of which JAX keeps account."""
    if not isinstance(leaf, jax.Array):
        return False
    place = jax.typeof(leaf).sharding
    return any(kind == AxisType.Explicit for _, kind in _kinds(place.mesh)) and any(place.spec)


def _lay(leaf: Any, spec: PartitionSpec) -> Any:
    return reshard(leaf, spec) if isinstance(leaf, jax.Array) else leaf


def _shared(leaf: jax.Array, lead: jax.Array | None) -> PartitionSpec:
    """Return how leading axes are split that are as long in both."""
    spec = []
    if lead is None:
        return PartitionSpec()
    for size, other, place in zip(leaf.shape, lead.shape, jax.typeof(lead).sharding.spec, strict=False):
        if size != other:
            break
        spec.append(place)
    return PartitionSpec(*spec)
