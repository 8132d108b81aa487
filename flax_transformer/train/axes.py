"""What the axes of a parameter are, and optimizers that see each layer of a stack as a parameter of its own.

A parameter's first axes are layers where it belongs to a stack; a kernel's others are its inputs, then its outputs,
e.g. [L, D, N, H] for queries.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import optax
from flax import nnx

from flax_transformer.parallel import path_name
from flax_transformer.train.finetune import LayerOrder

_VECTORS = (nnx.LayerNorm, nnx.RMSNorm, nnx.GroupNorm, nnx.BatchNorm)


@dataclass(frozen=True)
class Axes:
    """How many of a parameter's axes, in this order, are layers, inputs and outputs; only a kernel has inputs."""

    layers: int
    inputs: int
    outputs: int


def parameter_axes(tree: Any, order: LayerOrder = LayerOrder()) -> Any:
    """Tell the axes of every parameter of a model, its gradients or a part of either, as a tree of `Axes`.

    Flax's layers say how many axes their parameters have, others' kernels and embeddings tell it by their names; what
    is more than that are layers. Any other parameter, such as a scale of one's own, has as many axes of layers as
    those around it; where none is known it has one within a stack (see `LayerOrder`), and none elsewhere.

    >>> import jax.numpy as jnp
    >>> parameter_axes({"query": {"kernel": jnp.zeros((6, 8, 2, 4)), "bias": jnp.zeros((6, 2, 4))}})["query"]["bias"]
    Axes(layers=1, inputs=0, outputs=2)
    """
    known: dict[str, Axes] = {}
    for path, node in jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda node: bool(_declared(node))):
        for rest, leaf in jax.tree_util.tree_leaves_with_path(node):
            name = path_name((*path, *rest))
            own = _declared(node).get(path_name(rest)) or _named(name, leaf.ndim)
            if own is not None:
                known[name] = Axes(leaf.ndim - sum(own), *own)

    def axes(path: tuple, leaf: Any) -> Axes:
        name = path_name(path)
        if name in known:
            return known[name]
        layers = min(_layers_around(name, known, order), leaf.ndim)
        return Axes(layers, 0, leaf.ndim - layers)

    return jax.tree_util.tree_map_with_path(axes, tree)


def _declared(node: Any) -> dict[str, tuple[int, int]]:
    """Give the input and output axes of what a Flax layer holds, as it says itself; nothing for any other node."""
    if isinstance(node, nnx.LinearGeneral):
        inputs, outputs = len(node.in_features), len(node.out_features)
        return {"kernel": (inputs, outputs), "bias": (0, outputs)}
    if isinstance(node, nnx.Linear):
        return {"kernel": (1, 1), "bias": (0, 1)}
    if isinstance(node, nnx.Conv):
        return {"kernel": (len(node.kernel_shape) - 1, 1), "bias": (0, 1)}
    if isinstance(node, nnx.Embed):
        return {"embedding": (1, 1)}
    return {"scale": (0, 1), "bias": (0, 1)} if isinstance(node, _VECTORS) else {}


def _named(name: str, rank: int) -> tuple[int, int] | None:
    """Give the input and output axes of a kernel, an embedding or a low-rank factor of one by its name."""
    factor = re.fullmatch(r"(.*(?:kernel|embedding))\.([ab])", name)
    kernel = factor[1] if factor else name
    if not re.search(r"(^|\.)(kernel|embedding)$", kernel) or rank < 2:
        return None
    heads = re.search(r"(^|\.)(query|key|value|out)\.kernel$", kernel) if rank > 2 else None
    inputs, outputs = (1, 1) if heads is None else (2, 1) if heads[2] == "out" else (1, 2)
    return (inputs, outputs) if factor is None else {"a": (inputs, 1), "b": (1, outputs)}[factor[2]]


def _layers_around(name: str, known: dict[str, Axes], order: LayerOrder) -> int:
    """Count the axes of layers of the known parameters nearest in the tree: the fewest that one of them has."""
    parts = name.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        inside = "".join(f"{part}." for part in parts[:depth])
        if beside := [axes.layers for other, axes in known.items() if other.startswith(inside)]:
            return min(beside)
        if depth and parts[depth - 1] in order.stacks and not parts[depth].isdigit():
            return 1
    return 0


Named = dict[str, jax.Array]


def per_layer(
    transformation: optax.GradientTransformation, order: LayerOrder = LayerOrder()
) -> optax.GradientTransformation:
    """Apply a transformation to every layer of a stack, and to a kernel as the matrix it is, as if each were alone.

    For what looks at a parameter as a whole: its root mean square, its norm, its rows and columns. A stack of L blocks
    is then updated as L blocks apart are. It is one program however many layers there are: `jax.vmap`, for each number
    of layers in the tree. Statistics of every number of a kernel keep the kernel's shape, and so its layout on a mesh.
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


def _groups(tree: Any, order: LayerOrder) -> dict[str, tuple[Named, Named]]:
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
    """Give what lies under a parameter's name and has the shape it has before the shape it has after."""

    def change(path: tuple, leaf: Any) -> Any:
        name = path_name(path[-1:])
        fits = name in before and leaf.shape == before[name].shape
        return leaf.reshape(after[name].shape) if fits else leaf

    return jax.tree_util.tree_map_with_path(change, tree)
