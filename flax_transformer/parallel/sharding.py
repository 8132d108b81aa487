"""One table from parameter path to logical axes to mesh axes, and constraints for activations.

A parameter's path is matched against what `sharding_rules` says, then, if it says nothing of itself, against `RULES`;
the logical axes found there are looked up in `AXIS_TO_MESH`, or in what `axis_rules` says instead. Stacked layers have
one more leading axis than the rule names, `layers`.
"""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from flax_transformer.parallel.axis import Place, auto_axes, axis_to_mesh, several, unknown_axes

Axes = tuple[str | None, ...]

RULES: tuple[tuple[str, Axes], ...] = (
    (r"(^|\.)(query)\.kernel$", ("embed", "heads", None)),
    (r"(^|\.)(key|value)\.kernel$", ("embed", "kv_heads", None)),
    (r"(^|\.)(query)\.bias$", ("heads", None)),
    (r"(^|\.)(key|value)\.bias$", ("kv_heads", None)),
    (r"(^|\.)out\.kernel$", ("heads", None, "embed")),
    (r"(^|\.)patch\.kernel$", (None, None, None, "embed")),
    (r"(^|\.)experts\.(up|gate)\.kernel$", ("experts", "embed", "inner")),
    (r"(^|\.)experts\.(up|gate)\.bias$", ("experts", "inner")),
    (r"(^|\.)experts\.down\.kernel$", ("experts", "inner", "embed")),
    (r"(^|\.)experts\.down\.bias$", ("experts", None)),
    (r"(^|\.)(up|gate)\.kernel$", ("embed", "inner")),
    (r"(^|\.)(up|gate)\.bias$", ("inner",)),
    (r"(^|\.)down\.kernel$", ("inner", "embed")),
    (r"(^|\.)(out|down)\.bias$", (None,)),
    (r"(^|\.)(token|head)\.embedding$", ("vocab", "embed")),
    (r"(^|\.)(position|type)\.embedding$", (None, "embed")),
    (r"(^|\.)bucket\.embedding$", (None, "heads")),
    (r"(^|\.)output_bias$", ("vocab",)),
    (r"(^|\.)\w*norm\.(scale|bias)$", (None,)),
    (r"(^|\.)layer_scale$", (None,)),
    (r"\.(kernel|embedding)\.(a|b|factor|choice)$", ()),  # low-rank factors are small, so they stay whole
)
"""Parameter-path patterns (searched, first match wins) and the logical axes of what they name."""


def path_name(path: tuple) -> str:
    """Spell a pytree path as `encoder.attention.query.kernel`, without NNX's `value`; of a kernel of few bits
    `…kernel.values` and `…kernel.scale`.
    """
    name = jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value")
    return _WITHIN.sub(r"\1.\2", name)


_WITHIN = re.compile(r"(kernel|embedding)\.value\.(\w+(\.\w+)?)$")
_PART = re.compile(r"(?:(?<=kernel)|(?<=embedding))(\.base)?\.(base|values|scale|zero|input_scale)$")
"""What a kernel of few bits is made of, or one with adapters; its axes are those of the kernel."""
_WHOLE = re.compile(r"(?:(?<=kernel)|(?<=embedding))(\.base\.input_scale|\.(a|b|factor|choice|input_scale))$")
"""What is beside such a kernel."""


# Part of JAX's cache keys, as those of `axis_rules`.
_given = jax.make_user_context(())


@contextmanager
def sharding_rules(rules: Mapping[str, Axes]) -> Iterator[None]:
    """Say, within a `with` block, what the axes of parameters are; it comes before all that is known of them.

    Args:
      rules: patterns of parameter paths (searched, first match wins) to a name in `AXIS_TO_MESH` or None for each axis.

    Raises:
      ValueError: when a pattern is no regular expression.

    >>> with sharding_rules({r"mixer\\.kernel$": ("length", None)}):
    ...     logical_axes("blocks.mixer.kernel", 3)
    ('layers', 'length', None)
    """
    for pattern in rules:
        _compiled(pattern)
    with _given((*((pattern, tuple(axes)) for pattern, axes in rules.items()), *_given.value)):
        yield


def given_rules() -> dict[str, Axes]:
    """Return what `sharding_rules` has said here."""
    rules: dict[str, Axes] = {}
    for pattern, axes in _given.value:
        rules.setdefault(pattern, axes)
    return rules


def _compiled(pattern: str) -> re.Pattern:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"a sharding rule must be a regular expression, got {pattern!r}: {error}") from error


def with_axes(model: Any, rules: Mapping[str, Axes]) -> Any:
    """Register the axes of a model's parameters, so that everything which lays the model out knows.

    It is what `nnx.Param(x, out_sharding=axes, eager_sharding=False)` says of one parameter where it is made.

    Args:
      model: with parameters that are Flax variables; others have `sharding_rules`.
      rules: patterns of paths (searched, first match wins) to a name in `AXIS_TO_MESH` or None for each axis, but that
        of stacked layers.

    Raises:
      ValueError: when a pattern matches no parameter, or is no regular expression.
    """
    patterns, used = {pattern: _compiled(pattern) for pattern in rules}, set()

    def tell(path: tuple, node: Any) -> Any:
        matches = (pattern for pattern, compiled in patterns.items() if compiled.search(path_name(path)))
        pattern = next(matches, None)
        if pattern is None or not _is_variable(node):
            return node
        used.add(pattern)
        marked = jax.tree.map(lambda leaf: leaf, node)  # a node of its own
        marked.set_metadata(out_sharding=tuple(rules[pattern]), eager_sharding=False)
        return marked

    marked = jax.tree_util.tree_map_with_path(tell, model, is_leaf=_is_variable)
    if unused := [pattern for pattern in rules if pattern not in used]:
        raise ValueError(f"a sharding rule must match a Flax variable of the model, got {', '.join(unused)}")
    return marked


def _is_variable(node: Any) -> bool:
    return isinstance(node, nnx.Variable)


def _rule(name: str) -> tuple[str, Axes] | None:
    """Find the first rule of the table for a path."""
    return next(((pattern, axes) for pattern, axes in RULES if re.search(pattern, name)), None)


def _said(name: str) -> tuple[str, Axes] | None:
    """Find the first rule for a path that `sharding_rules` has said."""
    return next(((pattern, axes) for pattern, axes in _given.value if re.search(pattern, name)), None)


def _padded(name: str, rank: int, rule: tuple[str, Axes]) -> Axes:
    """Put the axes of layers before those that a rule names."""
    pattern, axes = rule
    if len(axes) > rank:
        raise ValueError(f"sharding rule {pattern!r} names {len(axes)} axes, but {name} has {rank}; {_HOW}")
    return _layers(rank - len(axes)) + axes


def _layers(count: int) -> Axes:
    return ("layers",) if count == 1 else (None,) * count


_HOW = (
    'say its axes where it is made, nnx.Param(x, out_sharding=("embed", None), eager_sharding=False), or of a '
    "model, with_axes(model, {pattern: axes}), or within `with sharding_rules({pattern: axes}):`"
)


def logical_axes(name: str, rank: int) -> Axes:
    """Look up the logical axes of a parameter by its path; one axis more in front than a rule names is that of layers.

    Raises:
      ValueError: when no rule matches, or a rule names more axes than the parameter has. Nothing is replicated
        by oversight.
    """
    rule = _said(name) or _rule(name)
    if rule is None:
        raise _no_rule(name, rank)
    return _padded(name, rank, rule)


def _no_rule(name: str, rank: int) -> ValueError:
    return ValueError(f"no sharding rule matches the parameter {name} of rank {rank}; {_HOW}")


def tree_axes(tree: Any) -> dict[str, Axes]:
    """Return the logical axes of every leaf of a model, by its path.

    First counts what `sharding_rules` says, then what the parameter says of itself (`with_axes`), then `RULES`. A
    vector of which nobody says anything is not split; it has an axis of layers where all that is known nearest to it in
    the model has one as long.

    Raises:
      ValueError: for a matrix of which nobody says anything, where more axes are named than there are, and for a name
        in which nobody knows what is split.
    """
    found: dict[str, Axes] = {}
    layers: dict[str, tuple[int, ...]] = {}
    unknown: dict[str, tuple[int, ...]] = {}
    for path, node in jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_variable):
        own = node.get_metadata().get("out_sharding") if _is_variable(node) else None
        for rest, leaf in jax.tree_util.tree_leaves_with_path(node):
            name = path_name((*path, *rest))
            whole = _PART.sub("", name)
            rule = _said(whole) or (own and ("out_sharding", tuple(own))) or _rule(whole)
            rule = ("", ()) if _WHOLE.search(name) else rule
            if leaf.ndim == 0 or jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                found[name] = (None,) * leaf.ndim
            elif rule is None:
                unknown[name] = leaf.shape
            else:
                found[name] = _padded(name, leaf.ndim, rule)
                _check_names(name, found[name])
                layers |= {name: leaf.shape[: leaf.ndim - len(rule[1])]} if rule[1] else {}
    for name, shape in unknown.items():
        around = _layers_around(name, layers)
        rest = len(shape) - len(around) if shape[: len(around)] == around else len(shape)
        if rest > 1:
            raise _no_rule(name, len(shape))
        found[name] = _layers(len(shape) - rest) + (None,) * rest
    return found


def _check_names(name: str, axes: Axes) -> None:
    known = axis_to_mesh()
    for axis in axes:
        if axis is not None and axis not in known:
            raise ValueError(
                f"axes must be {', '.join(known)}, None or what axis_rules adds, got {axis!r} for the parameter {name}"
            )


def _layers_around(name: str, layers: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the sizes of the axes of layers of the known parameters nearest in the tree, the fewest that one has."""
    parts = name.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        inside = "".join(f"{part}." for part in parts[:depth])
        if beside := [sizes for other, sizes in layers.items() if other.startswith(inside)]:
            return min(beside, key=len)
    return ()


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
        if size % parts and axis != "vocab" and not _PART.search(name):
            raise ValueError(
                f"{axis} must be a multiple of its mesh axis: {name} has {axis}={size}, {'×'.join(table[axis])}={parts}"
            )
        kept.append(None if size % parts else axis)
    return tuple(kept)


def _sizes(mesh: Mesh | AbstractMesh) -> Mapping[str, int]:
    """Return the sizes of a mesh's axes, all of which somebody knows the use of."""
    if unknown := unknown_axes(mesh.shape):
        spelled = ", ".join(f"{axis}={mesh.shape[axis]}" for axis in unknown)
        raise ValueError(
            f"every mesh axis must split something, or arrays are copied along it: nothing is split over {spelled}; "
            f'say what within `with axis_rules({{"batch": "{unknown[0]}"}}):`, of the logical axes '
            f"{', '.join(axis_to_mesh())}"
        )
    return mesh.shape


def tree_shardings(tree: Any, mesh: Mesh | AbstractMesh) -> Any:
    """Return a NamedSharding for every leaf of a model, or of its gradients.

    Scalars are replicated. Mesh axes of one device split nothing and are not named.

    Args:
      tree: arrays or `jax.ShapeDtypeStruct`s.
      mesh: real devices, or an abstract mesh where there are none; its axes have the names of `make_mesh`, or any that
        `axis_rules` has told.

    Raises:
      ValueError: as `tree_axes`, for an axis that cannot be cut evenly, and for a mesh axis that splits nothing.
    """
    sizes, axes = _sizes(mesh), tree_axes(tree)

    def place(path: tuple, leaf: Any) -> NamedSharding:
        name = path_name(path)
        return NamedSharding(mesh, to_spec(_fit(name, leaf.shape, axes[name], sizes), sizes))

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

    def is_cut(axis: str | None, place: Place, size: int) -> bool:
        known = axis is None or any(part in names for part in table.get(axis, ()))
        return known and size % math.prod(sizes[part] for part in several(place)) == 0

    spec = [PartitionSpec.UNCONSTRAINED] * x.ndim
    for i, (axis, place, size) in enumerate(zip(axes, to_spec(axes, sizes), x.shape, strict=False)):
        spec[i] = place if is_cut(axis, place, size) else spec[i]
    if all(place is PartitionSpec.UNCONSTRAINED for place in spec):
        return x
    if not isinstance(x, jax.core.Tracer) and not isinstance(x.sharding, NamedSharding):
        raise ValueError(
            f"outside of jit, arrays must lie on the mesh that is set: {jax.typeof(x).str_short()} has {x.sharding}; "
            "put it there, as in jax.device_put(x, parallel.batch_sharding(mesh)), or call within jax.jit"
        )
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec))
