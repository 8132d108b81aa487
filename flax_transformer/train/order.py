"""How far below the heads each parameter lies, by what the modules say (`flax_transformer.order`).

Axes: L layers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from flax_transformer.listing import listed
from flax_transformer.order import Layer, Order, Part, Stack
from flax_transformer.parallel import path_name

_HOW = (
    'layer_order = ("embedding", Stack("blocks"), "norm"), from the bottom up, with Stack, Layer and Part of '
    "flax_transformer.order"
)


@dataclass(frozen=True)
class _Section:
    """A part of a model, by the beginnings of its parameters' paths."""

    paths: tuple[str, ...]
    layers: bool = False
    """Whether it is one layer, or a stack of them; else it has none."""
    stack: bool = False
    beside: tuple[tuple["_Section", ...], ...] = ()
    """The sections of parts that lie beside each other."""
    stage: bool = False
    """Whether it is an item of a list of layers: it reads what the item before it gives, not inputs."""

    @property
    def layered(self) -> bool:
        return self.layers or bool(self.beside)


def layer_distances(tree: Any, order: Order | None = None) -> Any:
    """Compute how many layers below the heads each parameter lies.

    What lies between layers, such as the downsampling between two stages, belongs to the layer above it, and the norm
    at the end of a part that has other layers above it to that part's last layer.

    Args:
      tree: a model, its gradients or a part of either.
      order: that of the model's parts, where it does not say so itself (`layer_order`).

    Returns:
      A tree of NumPy integers that broadcast with the leaves: 0 for heads, 1 for the highest layer, one more for each
      layer below it (a stack's leaf gets an array [L, 1, …]), and one more for embeddings. Only layers that have
      parameters in `tree` count.

    Raises:
      ValueError: when the model, or a part of it, does not say the order of its layers, or leaves a parameter out.
    """
    sections = _sections(tree, "", order)
    stands_for = getattr(tree, "stands_for", lambda name: name)
    leaves = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    owners = _owners(sections, {name: stands_for(name) for name in leaves}, tree)
    found: dict[str, Any] = {}
    top = _climb(sections, 0, True, _Leaves(leaves, owners), found) + 1

    def distance(path: tuple, leaf: Any) -> np.ndarray:
        height = found[owners[path_name(path)]]
        down = np.asarray(top - np.asarray(top if height is None else height))
        return down.reshape(-1, *(1,) * (leaf.ndim - 1)) if down.ndim else down

    return jax.tree_util.tree_map_with_path(distance, tree)


def stacked(tree: Any) -> tuple[str, ...]:
    """Return the paths of all stacks with a layer axis that the modules in a tree name, as far as they say so."""
    return tuple(_stacked(tree, ""))


def _stacked(node: Any, path: str) -> Iterator[str]:
    for entry in getattr(node, "layer_order", ()):
        if isinstance(entry, Stack) and not _is_list(_child(node, entry.name)):
            yield f"{path}{entry.name}"
    for rest, child in _ordered_below(node):
        yield from _stacked(child, f"{path}{path_name(rest)}.")


def _ordered_below(node: Any) -> list[tuple[tuple, Any]]:
    """Find the nearest nodes below that say an order, with their paths."""

    def is_leaf(child):
        return child is not node and hasattr(child, "layer_order")

    nodes = jax.tree_util.tree_leaves_with_path(node, is_leaf=is_leaf)
    return [(path, child) for path, child in nodes if hasattr(child, "layer_order")]


def _is_list(node: Any) -> bool:
    return hasattr(node, "__len__") and hasattr(node, "__getitem__") and not isinstance(node, Mapping)


def _child(node: Any, name: str) -> Any:
    """Look up a dotted name; None where there is nothing of it."""
    for part in name.split("."):
        if isinstance(node, Mapping):
            node = node.get(part)
        elif part.isdigit() and _is_list(node):
            node = node[int(part)] if int(part) < len(node) else None
        else:
            node = getattr(node, part, None)
    return node


def _sections(node: Any, path: str, order: Order | None = None) -> tuple[_Section, ...]:
    """Read the order of a module and of its parts."""
    kind, where = type(node).__name__, f" ({path[:-1]})" if path else ""
    order = getattr(node, "layer_order", None) if order is None else order
    if order is None:
        raise ValueError(f"a model must say the order of its layers, {kind}{where} does not: {_HOW}")
    sections = tuple(section for entry in order for section in _read(node, path, entry))
    if not any(section.layered for section in sections):
        raise ValueError(f"an order must have a layer, {kind}{where} has none in {order}: {_HOW}")
    return sections


def _read(node: Any, path: str, entry: Any) -> Iterator[_Section]:
    """Read one entry of an order; nothing of what the module does not have."""
    names = (entry,) if isinstance(entry, str) else (entry.name,) if isinstance(entry, Stack) else entry.names
    there = {name: child for name in names if (child := _child(node, name)) is not None}
    if not there:
        return
    if isinstance(entry, Part):
        yield _Section((), beside=tuple(_sections(child, f"{path}{name}.") for name, child in there.items()))
    elif isinstance(entry, Layer):
        yield _Section(tuple(f"{path}{name}" for name in there), layers=True)
    elif isinstance(entry, Stack) and _is_list(there[entry.name]):
        for i, child in enumerate(there[entry.name]):
            inner = f"{path}{entry.name}.{i}"
            own = hasattr(child, "layer_order")
            if own:
                yield _Section((), beside=(_sections(child, f"{inner}."),), stage=True)
            else:
                yield _Section((inner,), layers=True)
    elif isinstance(entry, Stack):
        yield _Section((f"{path}{entry.name}",), layers=True, stack=True)
    else:
        if hasattr(there[entry], "layer_order") or _ordered_below(there[entry]):
            raise ValueError(
                f"a part with layers must be named as one, Part({entry!r}), got {entry!r} alone in the order of "
                f"{type(node).__name__}"
            )
        yield _Section((f"{path}{entry}",))


def _owners(sections: tuple[_Section, ...], names: Mapping[str, str], tree: Any) -> dict[str, str]:
    """Return in which section's path each parameter lies, from the path that it is known by to the modules."""
    paths = set(_paths(sections))
    found = {}
    for leaf, name in names.items():
        parts = name.split(".")
        begins = (".".join(parts[:i]) for i in range(len(parts), 0, -1))
        owner = next((begin for begin in begins if begin in paths), None)
        if owner is None:
            raise ValueError(
                f"every parameter must have a place in the order of layers, {name} of {type(tree).__name__} has none; "
                f"there are {listed(sorted(paths))}"
            )
        found[leaf] = owner
    return found


def _paths(sections: tuple[_Section, ...]) -> Iterator[str]:
    for section in sections:
        yield from section.paths
        for part in section.beside:
            yield from _paths(part)


@dataclass(frozen=True)
class _Leaves:
    """The parameters of a tree by their names, and the sections they lie in."""

    leaves: Mapping[str, Any]
    owners: Mapping[str, str]

    def depth(self, section: _Section) -> int:
        """Count the layers of a section that have parameters.

        Raises:
          ValueError: a stack whose parameters do not have one leading axis in common.
        """
        if section.beside:
            return max(sum(map(self.depth, part)) for part in section.beside)
        inside = {name: self.leaves[name] for name, owner in self.owners.items() if owner in section.paths}
        if not section.layers or not inside:
            return 0
        if not section.stack:
            return 1
        depths: dict[int, str] = {}
        for name, leaf in inside.items():
            depths.setdefault(leaf.shape[0] if leaf.ndim else 0, name)
        if len(depths) > 1:
            shown = ", ".join(f"{name} has {depth}" for depth, name in depths.items())
            raise ValueError(f"all parameters of a stack must have one layer axis, got {shown[:200]}")
        return next(iter(depths))


def _climb(
    sections: tuple[_Section, ...], base: int, last: bool, leaves: _Leaves, found: dict[str, Any], entry: int = 0
) -> int:
    """Return the height of each section, on `base` layers below it; None for the heads.

    Args:
      last: whether no layers of other parts come above these.
      entry: the height of what comes before the first of the layers: 0 where inputs come to it.

    Returns:
      how many layers there are up to here.
    """
    layered = [i for i, section in enumerate(sections) if section.layered]
    for i, section in enumerate(sections):
        depth = leaves.depth(section)
        if section.beside:
            for part in section.beside:
                below = base + depth - sum(map(leaves.depth, part))
                above = base + 1 if section.stage and base else 0
                _climb(part, below, last and i == layered[-1], leaves, found, above)
        elif section.stack:
            found[section.paths[0]] = base + 1 + np.arange(depth)
        elif section.layers:
            found |= dict.fromkeys(section.paths, base + 1)
        elif i < layered[0]:
            found |= dict.fromkeys(section.paths, entry)
        elif i < layered[-1]:
            found |= dict.fromkeys(section.paths, base + 1)
        else:
            found |= dict.fromkeys(section.paths, None if last else base)
        base += depth
    return base
