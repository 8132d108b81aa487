"""One table from parameter path to logical axes to mesh axes, and constraints for activations.

A parameter's path is matched against `RULES`; the logical axes found there are looked up in `AXIS_TO_MESH`.
Stacked layers have one more leading axis than the rule names, `layers`.
"""

import math
import re
from functools import partial
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

Axes = tuple[str | None, ...]

RULES: tuple[tuple[str, Axes], ...] = (
    (r"(^|\.)(query)\.kernel$", ("embed", "heads", None)),
    (r"(^|\.)(key|value)\.kernel$", ("embed", "kv_heads", None)),
    (r"(^|\.)(query)\.bias$", ("heads", None)),
    (r"(^|\.)(key|value)\.bias$", ("kv_heads", None)),
    (r"(^|\.)out\.kernel$", ("heads", None, "embed")),
    (r"(^|\.)(up|gate)\.kernel$", ("embed", "hidden")),
    (r"(^|\.)(up|gate)\.bias$", ("hidden",)),
    (r"(^|\.)down\.kernel$", ("hidden", "embed")),
    (r"(^|\.)(out|down)\.bias$", (None,)),
    (r"(^|\.)(token|head)\.embedding$", ("vocab", "embed")),
    (r"(^|\.)(position|type)\.embedding$", (None, "embed")),
    (r"(^|\.)bucket\.embedding$", (None, "heads")),
    (r"(^|\.)(dense|output|project)\.kernel$", ("embed", None)),
    (r"(^|\.)(dense|output|project)\.bias$", (None,)),
    (r"(^|\.)output_bias$", ("vocab",)),
    (r"(^|\.)\w*norm\.(scale|bias)$", (None,)),
    (r"\.(kernel|embedding)\.(a|b)$", ()),  # low-rank factors are small, so they stay whole
)
"""Parameter-path patterns (searched, first match wins) and the logical axes of what they name."""

AXIS_TO_MESH: dict[str, str | tuple[str, ...]] = {
    "batch": ("data", "fsdp"),
    "length": "sequence",
    "layers": "pipeline",
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "hidden": "tensor",
    "vocab": "tensor",
}
"""Logical axis to mesh axis; a logical axis that is not here is not split."""


def path_name(path: tuple) -> str:
    """Spell a pytree path as `encoder.attention.query.kernel`, without NNX's trailing `value`."""
    return jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value")


def logical_axes(name: str, rank: int, rules: tuple[tuple[str, Axes], ...] = RULES) -> Axes:
    """Look up the logical axes of a parameter; one axis more in front than the rule names is that of stacked layers.

    Raises:
      ValueError: when no rule matches, or a rule names more axes than the parameter has. Nothing is replicated
        by oversight.
    """
    for pattern, axes in rules:
        if re.search(pattern, name):
            if len(axes) > rank:
                raise ValueError(f"sharding rule {pattern!r} names {len(axes)} axes, but {name} has {rank}")
            extra = rank - len(axes)
            return (("layers",) if extra == 1 else (None,) * extra) + axes
    raise ValueError(f"no sharding rule matches the parameter {name} of rank {rank}; add one to the table")


def to_spec(axes: Axes, axis_to_mesh: dict[str, str | tuple[str, ...]] | None = None) -> PartitionSpec:
    """Translate logical axes into a PartitionSpec."""
    table = AXIS_TO_MESH if axis_to_mesh is None else axis_to_mesh
    return PartitionSpec(*(table.get(axis) if axis is not None else None for axis in axes))


def _parts(axis: str | None, mesh: Mesh | AbstractMesh) -> int:
    return math.prod(mesh.shape.get(part, 1) for part in _several(AXIS_TO_MESH.get(axis) or ()))


def _fit(name: str, shape: tuple[int, ...], axes: Axes, mesh: Mesh | AbstractMesh) -> Axes:
    """Check that every axis can be split as asked; a vocabulary, whose size nobody chose for it, stays whole if not."""
    for size, axis in zip(shape, axes, strict=True):
        parts = _parts(axis, mesh)
        if size % parts and axis != "vocab":
            raise ValueError(
                f"{axis} must be a multiple of its mesh axis: {name} has {axis}={size}, {AXIS_TO_MESH[axis]}={parts}"
            )
    return tuple(None if size % _parts(axis, mesh) else axis for size, axis in zip(shape, axes, strict=True))


def tree_shardings(tree: Any, mesh: Mesh | AbstractMesh, rules: tuple[tuple[str, Axes], ...] = RULES) -> Any:
    """Give every leaf of a model, its gradients or its optimizer state a NamedSharding.

    Optimizer states hold copies of the model, so their leaves end in the same paths; scalars are replicated. Mesh axes
    of one device split nothing and are not named.

    Args:
      tree: arrays or `jax.ShapeDtypeStruct`s.
      mesh: real devices, or an abstract mesh where there are none.
    """

    def place(path, leaf):
        if leaf.ndim == 0 or jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return NamedSharding(mesh, PartitionSpec())
        name = path_name(path)
        axes = _fit(name, leaf.shape, logical_axes(name, leaf.ndim, rules), mesh)
        return NamedSharding(mesh, to_spec(axes, table))

    table = _table({axis for axis, size in mesh.shape.items() if size > 1})
    return jax.tree_util.tree_map_with_path(place, tree)


def batch_sharding(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Split the leading axis of a batch over the data and fsdp axes."""
    return NamedSharding(mesh, to_spec(("batch",)))


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Pin an activation's layout by logical names; a no-op while no mesh is set (`jax.set_mesh`).

    Of more names than `x` has axes the last count; of fewer, the last axes of x stay whole, as does one that cannot be
    cut into equal parts. Only mesh axes that the compiler lays out are spoken of: not those a mesh lacks, and not those
    of a `jax.shard_map` around, where x is already a part.
    """
    auto = _auto()
    if not auto:
        return x
    table, sizes = _table(auto), jax.sharding.get_abstract_mesh().shape

    def uneven(axis: str | None, size: int) -> int:
        return size % math.prod(sizes[part] for part in _several(table.get(axis) or ()))

    axes = axes[-x.ndim :]
    kept = (None if uneven(axis, size) else axis for axis, size in zip(axes, x.shape, strict=False))
    return jax.lax.with_sharding_constraint(x, to_spec(tuple(kept), table))


def gather_parameter(parameter: jax.Array, name: str) -> jax.Array:
    """Gather what `fsdp` splits of one layer's parameter; its gradient is summed and split at once.

    A no-op while no mesh with such an axis is set, or inside a `jax.shard_map` over it.

    Args:
      name: for the table, e.g. `query.kernel`.

    Raises:
      ValueError: when no rule of the table matches the name.
    """
    return _gather(parameter, logical_axes(name, parameter.ndim)) if "fsdp" in _auto() else parameter


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _gather(parameter: jax.Array, axes: Axes) -> jax.Array:
    return constrain(parameter, *(None if AXIS_TO_MESH.get(axis) == "fsdp" else axis for axis in axes))


def _gather_forward(parameter: jax.Array, axes: Axes) -> tuple[jax.Array, None]:
    return _gather(parameter, axes), None


def _gather_backward(axes: Axes, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    return (constrain(gradient, *axes),)


_gather.defvjp(_gather_forward, _gather_backward)


def _auto() -> set[str]:
    """Name the axes of the mesh in context along which the compiler splits anything."""
    mesh = jax.sharding.get_abstract_mesh()
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return {axis for axis, kind in kinds if kind == AxisType.Auto and mesh.shape[axis] > 1}


def _table(axes: set[str]) -> dict[str, str | tuple[str, ...]]:
    """Reduce the table to some axes of a mesh."""
    kept = {axis: tuple(a for a in _several(place) if a in axes) for axis, place in AXIS_TO_MESH.items()}
    return {axis: place[0] if len(place) == 1 else place for axis, place in kept.items() if place}


def _several(place: str | tuple[str, ...]) -> tuple[str, ...]:
    return (place,) if isinstance(place, str) else place
