"""The kernels of a model's linear layers, by path: what is quantized, observed or pruned.

Axes: L layers and experts, one after another in front; a kernel's other axes are its inputs and its outputs.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx

from flax_transformer.nn.linear import StructuredKernel
from flax_transformer.parallel import path_name


@dataclass(frozen=True)
class KernelAxes:
    """How many axes of a kernel, from the front, are of layers, and how many after them are inputs."""

    layers: int
    inputs: int
    table: bool = False
    """Whether it is a table [V, D], whose rows are what kernels call outputs."""


@dataclass(frozen=True)
class WrappedKernel(StructuredKernel):
    """A whole kernel in something that is multiplied otherwise."""

    kernel: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the kernel."""
        return self.kernel.shape

    @property
    def dtype(self) -> Any:
        """Of the kernel."""
        return self.kernel.dtype


def linear_kernels(model: Any) -> dict[str, KernelAxes]:
    """Find the kernels of all linear layers of a model, by path.

    Args:
      model: of this package, or another pytree with Flax's linear layers in it; arrays or abstract ones.
    """
    found = {}
    for path, layer in modules_of(model, nnx.Linear | nnx.LinearGeneral):
        kernel = layer.kernel.get_value()
        inputs = len(layer.in_features) if isinstance(layer, nnx.LinearGeneral) else 1
        outputs = len(layer.out_features) if isinstance(layer, nnx.LinearGeneral) else 1
        found[f"{path}.kernel".lstrip(".")] = KernelAxes(len(kernel.shape) - inputs - outputs, inputs)
    return found


def is_table(path: str) -> bool:
    """Return whether a parameter is a table of tokens or of their positions.

    >>> is_table("embedding.token.embedding"), is_table("source_embedding.position.embedding"), is_table("out.kernel")
    (True, True, False)
    """
    return re.search(r"(^|\.)token\.embedding$|embedding\.position\.embedding$", path) is not None


def lookup_tables(model: Any) -> dict[str, KernelAxes]:
    """Find the tables of tokens, and of their positions, of a model, by path."""
    found = {}
    for path, node in jax.tree_util.tree_leaves_with_path(model, is_leaf=lambda node: isinstance(node, nnx.Variable)):
        if isinstance(node, nnx.Variable) and is_table(path_name(path)):
            found[path_name(path)] = KernelAxes(0, 1, table=True)
    return found


def kernels_of(model: Any) -> dict[str, Any]:
    """Return the kernels of linear layers and the tables of a model, by path."""
    found: dict[str, Any] = {}
    map_kernels(lambda path, kernel: found.setdefault(path, kernel), model)
    return found


def map_kernels(change: Callable[[str, Any], Any], model: Any) -> Any:
    """Return a model with other kernels and tables.

    Args:
      change: from the path and value of a linear layer's kernel, or of a table, to the value in its place.
    """
    paths = linear_kernels(model) | lookup_tables(model)

    def put(path: tuple, node: Any) -> Any:
        name = path_name(path)
        if not isinstance(node, nnx.Variable) or name not in paths:
            return node
        # The shape of what is inside says nothing to Flax, nor where it lies; axes stay said.
        return node.replace(change(name, node.get_value()))

    return jax.tree_util.tree_map_with_path(put, model, is_leaf=lambda node: isinstance(node, nnx.Variable))


def modules_of(model: Any, kinds: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Return the modules of some classes in a model, and their paths; what is inside of one is not looked at.

    Args:
      kinds: as `isinstance` takes them.
    """
    if isinstance(model, kinds):
        yield before, model
        return

    def is_module(node: Any) -> bool:
        return node is not model and isinstance(node, nnx.Module)

    for path, node in jax.tree_util.tree_leaves_with_path(model, is_leaf=is_module):
        if isinstance(node, nnx.Module):
            yield from modules_of(node, kinds, f"{before}.{path_name(path)}".lstrip("."))


def resized(model: Any, config: Any, change: Callable[[str, Any, tuple[int, ...]], Any]) -> Any:
    """Return the model of another config, with what becomes of the parameters of this one.

    Args:
      change: from the path of a parameter, its value, and the shape that it has in the other model, to its value there.

    Raises:
      ValueError: a value of another shape than that: the config does not say all that changes.
    """
    leaves = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(model)}

    def fill(path: tuple, leaf: Any) -> Any:
        name = path_name(path)
        made = change(name, leaves[name], leaf.shape)
        if made.shape != leaf.shape:
            raise ValueError(f"what is removed must be said by the model's config, that of {name} is not")
        return made

    return jax.tree_util.tree_map_with_path(fill, nnx.eval_shape(lambda: config.build(nnx.Rngs(0))))
