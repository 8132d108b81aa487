"""What the axes of a parameter are, and optimizers that see each layer of a stack as a parameter of its own.

A parameter's first axes are layers where it belongs to a stack; a kernel's others are its inputs, then its outputs,
e.g. [L, D, N, H] for queries, or [L, height, width, C, D] for a convolution.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import optax
from flax import nnx

from flax_transformer.order import Order, Stack
from flax_transformer.parallel import path_name
from flax_transformer.train.carry import is_variable
from flax_transformer.train.order import stacked

_VECTORS = (nnx.LayerNorm, nnx.RMSNorm, nnx.GroupNorm, nnx.InstanceNorm, nnx.BatchNorm)


@dataclass(frozen=True)
class Axes:
    """How many of a parameter's axes, in this order, are layers, inputs and outputs; only a kernel has inputs."""

    layers: int
    inputs: int
    outputs: int


def parameter_axes(tree: Any, order: Order | None = None) -> Any:
    """Return the axes of every parameter of a model, its gradients or a part of either, as a tree of `Axes`.

    How many axes a parameter has by itself, Flax's layers say of theirs, and of others the logical axes they were made
    with (`nnx.Param(…, out_sharding=…)`); what is more than that are layers. Any other parameter of a module has as
    many axes of layers as those around it; where none is known it has one within a `Stack`, and none elsewhere. In a
    tree without modules the names of kernels and embeddings tell.

    Args:
      order: the stacks among the parts of a tree that does not say them itself (`layer_order`).

    >>> import jax.numpy as jnp
    >>> parameter_axes({"query": {"kernel": jnp.zeros((6, 8, 2, 4)), "bias": jnp.zeros((6, 2, 4))}})["query"]["bias"]
    Axes(layers=1, inputs=0, outputs=2)
    """
    leaves = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    said, modules = dict(_said(tree, ())), tuple(_modules(tree))
    stands_for = getattr(tree, "stands_for", lambda name: name)
    known: dict[str, Axes] = {}
    for name, leaf in leaves.items():
        own = said.get(stands_for(name)) or _named(name, leaf.ndim, inside=name.startswith(modules))
        own = own if own is None or stands_for(name) == name else _factor(name, own)
        if own is not None and sum(own) <= leaf.ndim:
            known[name] = Axes(leaf.ndim - sum(own), *own)
    stacks = tuple(entry.name for entry in order or () if isinstance(entry, Stack)) or stacked(tree)

    def axes(path: tuple, leaf: Any) -> Axes:
        name = path_name(path)
        if name in known:
            return known[name]
        layers = min(_layers_around(name, known, stacks), leaf.ndim)
        return Axes(layers, *_split(name, leaf.ndim - layers))

    return jax.tree_util.tree_map_with_path(axes, tree)


def _said(node: Any, path: tuple) -> Iterator[tuple[str, tuple[int, int]]]:
    """Return the input and output axes of parameters by their paths, as far as modules and variables say them."""

    def is_leaf(child):
        return is_variable(child) or (child is not node and isinstance(child, nnx.Module))

    declared = _declared(node)
    for rest, child in jax.tree_util.tree_leaves_with_path(node, is_leaf=is_leaf):
        name = path_name((*path, *rest))
        if (own := declared.get(path_name(rest))) is not None:
            yield name, own
        elif isinstance(child, nnx.Module):
            yield from _said(child, (*path, *rest))
        elif is_variable(child) and (axes := child.get_metadata().get("out_sharding")) is not None:
            yield name, _split(name, len(axes))


def _modules(tree: Any) -> Iterator[str]:
    """Return what the paths of parameters within modules begin with."""

    def is_leaf(node):
        return isinstance(node, nnx.Module)

    for path, node in jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf):
        if isinstance(node, nnx.Module):
            yield f"{path_name(path)}." if path else ""


def _declared(node: Any) -> dict[str, tuple[int, int]]:
    """Return the input and output axes of what a Flax layer holds, as it says itself; nothing for any other node."""
    if isinstance(node, nnx.LinearGeneral):
        inputs, outputs = len(node.in_features), len(node.out_features)
        return {"kernel": (inputs, outputs), "bias": (0, outputs)}
    if isinstance(node, nnx.Linear):
        return {"kernel": (1, 1), "bias": (0, 1)}
    if isinstance(node, nnx.Conv | nnx.ConvTranspose):
        return {"kernel": (len(node.kernel_shape) - 1, 1), "bias": (0, 1)}
    if isinstance(node, nnx.Einsum):
        outputs = len(node.bias_shape or node.kernel_shape[1:])
        return {"kernel": (len(node.kernel_shape) - outputs, outputs), "bias": (0, outputs)}
    if isinstance(node, nnx.Embed):
        return {"embedding": (1, 1)}
    return dict.fromkeys(("scale", "bias", "mean", "var"), (0, 1)) if isinstance(node, _VECTORS) else {}


_MATRIX = re.compile(r"(^|\.)(kernel|embedding)$")


def _split(name: str, rank: int) -> tuple[int, int]:
    """Split the axes that a parameter has by itself into inputs and outputs."""
    if rank < 2 or not _MATRIX.search(name):
        return 0, rank
    return (1, rank - 1) if re.search(r"(^|\.)(query|key|value)\.kernel$", name) else (rank - 1, 1)


def _factor(name: str, kernel: tuple[int, int]) -> tuple[int, int]:
    """Return the input and output axes of a low-rank factor, `a` or `b`, of a kernel with those."""
    return (kernel[0], 1) if name.endswith(".a") else (1, kernel[1])


def _named(name: str, rank: int, inside: bool) -> tuple[int, int] | None:
    """Return the input and output axes of a kernel, an embedding or a low-rank factor of one by its name.

    Inside of a module more axes than two may as well be those of a window: there those around say more.
    """
    factor = re.fullmatch(r"(.*(?:kernel|embedding))\.([ab])", name)
    kernel = factor[1] if factor else name
    if not _MATRIX.search(kernel) or rank < 2 or (inside and rank > 2):
        return None
    heads = re.search(r"(^|\.)(query|key|value|out)\.kernel$", kernel) if rank > 2 else None
    inputs, outputs = (1, 1) if heads is None else (2, 1) if heads[2] == "out" else (1, 2)
    return (inputs, outputs) if factor is None else _factor(name, (inputs, outputs))


def _layers_around(name: str, known: dict[str, Axes], stacks: tuple[str, ...]) -> int:
    """Count the axes of layers of the known parameters nearest in the tree: the fewest that one of them has.

    What is in a stack says nothing of what is beside it.
    """
    parts, others = name.split("."), tuple(f"{path}." for path in stacks if not name.startswith(f"{path}."))
    for depth in range(len(parts) - 1, -1, -1):
        inside = "".join(f"{part}." for part in parts[:depth])
        near = [other for other in known if other.startswith(inside) and not other.startswith(others)]
        if near:
            return min(known[other].layers for other in near)
        if inside.removesuffix(".") in stacks:
            return 1
    return 0


Named = dict[str, jax.Array]


def per_layer(transformation: optax.GradientTransformation, order: Order | None = None) -> optax.GradientTransformation:
    """Apply a transformation to every layer of a stack, and to a kernel as the matrix it is, as if each were alone.

    For what looks at a parameter as a whole: its root mean square, its norm, its rows and columns. A stack of L blocks
    is then updated as L blocks apart are. It is one program however many layers there are: `jax.vmap`, for each number
    of layers in the tree. Statistics of every number of a kernel keep the kernel's shape, and so its layout on a mesh.

    Args:
      order: as of `parameter_axes`.
    """

    def init(params: Any) -> dict[str, Any]:
        state = {}
        for group, (parameters, matrices) in _groups(params, order).items():
            state[group] = _reshape(_mapped(transformation.init, group)(matrices), matrices, parameters)
        return state

    def update(updates: Any, state: dict[str, Any], params: Any = None) -> tuple[Any, dict[str, Any]]:
        beside = {} if params is None else _groups(params, order)
        moved, new = {}, {}
        for group, (parts, matrices) in _groups(updates, order).items():
            before = _reshape(state[group], parts, matrices)
            values = beside[group][1] if group in beside else None
            steps, after = _mapped(transformation.update, group)(matrices, before, values)
            moved |= _reshape(steps, matrices, parts)
            new[group] = _reshape(after, matrices, parts)
        return jax.tree_util.tree_map_with_path(lambda path, _: moved[path_name(path)], updates), new

    return optax.GradientTransformation(init, update)


def _groups(tree: Any, order: Order | None) -> dict[str, tuple[Named, Named]]:
    """Sort parameters by the sizes of their axes of layers; give each as it is, and as matrices behind those axes."""
    found: dict[str, tuple[Named, Named]] = {}
    axes = jax.tree.leaves(parameter_axes(tree, order))
    for (path, leaf), its in zip(jax.tree_util.tree_leaves_with_path(tree), axes, strict=True):
        layers, rest = leaf.shape[: its.layers], leaf.shape[its.layers :]
        matrix = (math.prod(rest[: its.inputs]), math.prod(rest[its.inputs :])) if its.inputs else rest
        parameters, matrices = found.setdefault(
            "_".join(map(str, ("layers", *layers))) if layers else "alone", ({}, {})
        )
        parameters[path_name(path)], matrices[path_name(path)] = leaf, leaf.reshape(*layers, *matrix)
    return found


def _mapped(function: Callable, group: str) -> Callable:
    for _ in group.split("_")[1:]:
        function = jax.vmap(function)
    return function


def _reshape(tree: Any, before: Named, after: Named) -> Any:
    """Return what lies under a parameter's name and has the shape it has before the shape it has after."""

    def change(path: tuple, leaf: Any) -> Any:
        name = path_name(path[-1:])
        fits = name in before and leaf.shape == before[name].shape
        return leaf.reshape(after[name].shape) if fits else leaf

    return jax.tree_util.tree_map_with_path(change, tree)
