"""Which mesh axes a logical axis is split over: by our rule or the user's, on a mesh of any names."""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import jax
from jax.sharding import AxisType

Place = str | tuple[str, ...] | None

AXIS_TO_MESH: dict[str, Place] = {
    "batch": ("data", "fsdp", "expert"),
    "length": "sequence",
    "layers": "pipeline",
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "inner": "tensor",
    "experts": "expert",
    "vocab": "tensor",
}
"""Logical axis to mesh axes, where `axis_rules` says nothing else; a logical axis that is not here is not split."""


def several(place: Place) -> tuple[str, ...]:
    """Return the mesh axes of a place in a table, or in a PartitionSpec."""
    return (place,) if isinstance(place, str) else () if place is None else tuple(place)


_DEFAULT = {axis: several(place) for axis, place in AXIS_TO_MESH.items()}

# Part of JAX's cache keys, so that no function traced under one rule is taken for one under another.
_given = jax.make_user_context(())


@contextmanager
def axis_rules(rules: Mapping[str, Place]) -> Iterator[None]:
    """Say, within a `with` block, which mesh axes logical axes are split over; what is not named stays as it was.

    Everything that knows of meshes goes by it: `constrain`, the sharding table, lookups, losses, the ring, pipelines,
    training. So any mesh will do, not only that of `make_mesh`.

    Args:
      rules: logical axis, as in `AXIS_TO_MESH`, to a mesh axis, to several, or to None: not split. Others than those
        there may be named, for a sharding table of one's own.

    >>> with axis_rules({"batch": "dp", "heads": ("tp", "model"), "embed": None}):
    ...     table = axis_to_mesh()
    >>> table["batch"], table["heads"], table["embed"], table["length"]
    (('dp',), ('tp', 'model'), (), ('sequence',))
    """
    table = axis_to_mesh() | {axis: several(place) for axis, place in rules.items()}
    with _given(tuple(sorted(table.items() - _DEFAULT.items()))):
        yield


def axis_to_mesh() -> dict[str, tuple[str, ...]]:
    """Return the table that holds here: `AXIS_TO_MESH` and what `axis_rules` has said."""
    return _DEFAULT | dict(_given.value)


def auto_axes() -> dict[str, int]:
    """Return the mesh axes in context along which the compiler splits arrays, with their sizes; none without a mesh.

    >>> auto_axes()
    {}
    """
    mesh = jax.sharding.get_abstract_mesh()
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return {name: mesh.shape[name] for name, kind in kinds if kind == AxisType.Auto}


def mesh_axes(*names: str) -> tuple[str, ...]:
    """Name the mesh axes in context that split any of these logical axes into more than one part.

    >>> mesh_axes("batch", "length")
    ()
    """
    sizes, table = auto_axes(), axis_to_mesh()
    places = (place for name in names for place in table.get(name, ()))
    return tuple(dict.fromkeys(place for place in places if sizes.get(place, 1) > 1))


def parts(*names: str) -> int:
    """Count the parts into which the mesh in context splits an array that has these logical axes.

    >>> parts("batch", "length")
    1
    """
    sizes = auto_axes()
    return math.prod(sizes[place] for place in mesh_axes(*names))


def row_parts(sizes: Mapping[str, int]) -> int:
    """Count the parts that the rows of a batch are split into on a mesh of these sizes.

    >>> row_parts({"data": 4, "fsdp": 2, "tensor": 8})
    8
    """
    return math.prod(sizes.get(place, 1) for place in axis_to_mesh().get("batch", ()))


def spelled(name: str) -> str:
    """Name what splits a logical axis, for messages.

    >>> spelled("batch")
    'data × fsdp × expert'
    """
    return " × ".join(axis_to_mesh().get(name, ())) or name


def unknown_axes(sizes: Mapping[str, int]) -> Collection[str]:
    """Name the axes, of these sizes, that split something, but nobody has said what."""
    known = {place for places in axis_to_mesh().values() for place in places}
    return [name for name, size in sizes.items() if size > 1 and name not in known]
