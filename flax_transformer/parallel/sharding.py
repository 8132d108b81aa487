"""One table from parameter path to logical axes to mesh axes, and constraints for activations.

A parameter's path is matched against `RULES`; the logical axes found there are looked up in `AXIS_TO_MESH`,
or in what `axis_rules` says instead. Stacked layers have one more leading axis than the rule names, `layers`.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from flax_transformer.parallel.axis import Place, auto_axes, axis_to_mesh, several, unknown_axes

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
    (r"(^|\.)layer_scale$", (None,)),
    (r"\.(kernel|embedding)\.(a|b)$", ()),  # low-rank factors are small, so they stay whole
)
"""Parameter-path patterns (searched, first match wins) and the logical axes of what they name."""


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


def to_spec(axes: Axes, sizes: Mapping[str, int]) -> PartitionSpec:
    """Translate logical axes into a PartitionSpec of the mesh axes that split anything; each is used once, the first
    time."""
    table, used = axis_to_mesh(), set()

    def split(axis: str | None) -> tuple[str, ...]:
        on = tuple(part for part in table.get(axis, ()) if sizes.get(part, 1) > 1 and part not in used)
        used.update(on)
        return on

    return PartitionSpec(*(on[0] if len(on) == 1 else on or None for on in map(split, axes)))


def _fit(name: str, shape: tuple[int, ...], axes: Axes, sizes: Mapping[str, int]) -> Axes:
    """Check that every axis can be split as asked; a vocabulary, whose size nobody chose for it, stays whole if not."""
    table, kept = axis_to_mesh(), []
    for size, axis in zip(shape, axes, strict=True):
        parts = math.prod(sizes.get(part, 1) for part in table.get(axis, ()))
        if size % parts and axis != "vocab":
            raise ValueError(
                f"{axis} must be a multiple of its mesh axis: {name} has {axis}={size}, {'×'.join(table[axis])}={parts}"
            )
        kept.append(None if size % parts else axis)
    return tuple(kept)


def _sizes(mesh: Mesh | AbstractMesh) -> Mapping[str, int]:
    """Give the sizes of a mesh's axes, all of which somebody knows the use of."""
    if unknown := unknown_axes(mesh.shape):
        spelled = ", ".join(f"{axis}={mesh.shape[axis]}" for axis in unknown)
        raise ValueError(
            f"every mesh axis must split something, or arrays are copied along it: nothing is split over {spelled}; "
            f'say what within `with axis_rules({{"batch": "{unknown[0]}"}}):`, of the logical axes '
            f"{', '.join(axis_to_mesh())}"
        )
    return mesh.shape


def tree_shardings(tree: Any, mesh: Mesh | AbstractMesh, rules: tuple[tuple[str, Axes], ...] = RULES) -> Any:
    """Give every leaf of a model, its gradients or its optimizer state a NamedSharding.

    Optimizer states hold copies of the model, so their leaves end in the same paths; scalars are replicated. Mesh axes
    of one device split nothing and are not named.

    Args:
      tree: arrays or `jax.ShapeDtypeStruct`s.
      mesh: real devices, or an abstract mesh where there are none; its axes have the names of `make_mesh`, or any that
        `axis_rules` has told.

    Raises:
      ValueError: as `logical_axes`, for an axis that cannot be cut evenly, and for a mesh axis that splits nothing.
    """

    def place(path, leaf):
        if leaf.ndim == 0 or jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return NamedSharding(mesh, PartitionSpec())
        name = path_name(path)
        axes = _fit(name, leaf.shape, logical_axes(name, leaf.ndim, rules), sizes)
        return NamedSharding(mesh, to_spec(axes, sizes))

    sizes = _sizes(mesh)
    return jax.tree_util.tree_map_with_path(place, tree)


def batch_sharding(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Split the leading axis of a batch, over the axes data and fsdp if nothing else is said (`axis_rules`)."""
    return NamedSharding(mesh, to_spec(("batch",), _sizes(mesh)))


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Pin an activation's layout by logical names; a no-op while no mesh is set (`jax.set_mesh`).

    Of more names than `x` has axes the last count; None is whole. All else is left to the compiler: axes of x beyond
    the names, an axis that the mesh has no axis for or that cannot be cut into equal parts, everything on a mesh with
    an axis whose use nobody has told (`axis_rules`), as each word about x would say that it is copied along that axis,
    and mesh axes of a `jax.shard_map` around, where x is already a part.
    """
    sizes = {axis: size for axis, size in auto_axes().items() if size > 1}
    if not sizes or unknown_axes(sizes):
        return x
    axes, table, names = axes[-x.ndim :], axis_to_mesh(), jax.sharding.get_abstract_mesh().axis_names

    def told(axis: str | None, place: Place, size: int) -> bool:
        known = axis is None or any(part in names for part in table.get(axis, ()))
        return known and size % math.prod(sizes[part] for part in several(place)) == 0

    spec = [PartitionSpec.UNCONSTRAINED] * x.ndim
    for i, (axis, place, size) in enumerate(zip(axes, to_spec(axes, sizes), x.shape, strict=False)):
        spec[i] = place if told(axis, place, size) else spec[i]
    if all(place is PartitionSpec.UNCONSTRAINED for place in spec):
        return x
    if not isinstance(x, jax.core.Tracer) and not isinstance(x.sharding, NamedSharding):
        raise ValueError(
            f"outside of jit, arrays must lie on the mesh that is set: {jax.typeof(x).str_short()} has {x.sharding}; "
            "put it there, as in jax.device_put(x, parallel.batch_sharding(mesh)), or call within jax.jit"
        )
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec))
