"""Kernels with the low-rank changes of several adapters beside them, of which each row of a batch chooses one.

The choice is an array, so that one program serves all choices: x W + s_i (x A_i) B_i, where i is the row's (Hu et al.
2021, https://arxiv.org/abs/2106.09685; rows of different adapters: Chen et al. 2023,
https://arxiv.org/abs/2310.18547). Axes: n adapters, r rank, B rows that choose.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flax_transformer.nn.linear import StructuredKernel, cast_where_used, flat_dot_general, last_axes
from flax_transformer.ops import widen
from flax_transformer.parallel import constrain


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AdaptedKernel(StructuredKernel):
    """A kernel [*layers, *inputs, *outputs] and the low-rank changes of n adapters; `multiply` is a product with both.

    It stands in the place of an array in a parameter, so that `jit`, `scan` and `vmap` take it; see `choose_adapter`.
    """

    base: Any
    """The kernel, an array or another `StructuredKernel`."""
    a: Any
    """[*layers, n, *inputs, r], float32; an adapter of a smaller rank has zeros."""
    b: Any
    """[*layers, n, r, *outputs], float32; an adapter that does not change this kernel has zeros."""
    factor: Any
    """[*layers, n]: what the products of a and b are multiplied by."""
    choice: Any
    """[*layers] or [*layers, B]: the adapter of all rows or of each, by its number; -1: none."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the kernel."""
        return self.base.shape

    @property
    def ndim(self) -> int:
        """How many axes the kernel has."""
        return len(self.base.shape)

    @property
    def size(self) -> int:
        """How many numbers the kernel has."""
        return math.prod(self.base.shape)

    @property
    def dtype(self) -> Any:
        """Of the kernel."""
        return self.base.dtype

    @property
    def layers(self) -> tuple[int, ...]:
        """The sizes of the axes of layers."""
        return self.factor.shape[:-1]

    def multiply(self, x: Float[Array, "..."], inputs: int) -> Float[Array, "..."]:
        """Multiply the last axes of x, as many as there are inputs; the result has the type of x.

        The first axis of x is the rows', or several places of each row's one after another, as beams are. A row
        without an adapter gets what the kernel alone gives. Changes are computed in float32.

        Raises:
          ValueError: rows that are no multiple of those that choose.
        """
        if isinstance(self.base, StructuredKernel):
            y = self.base.multiply(x, inputs)
        else:
            y = flat_dot_general(x, cast_where_used(self.base, x.dtype), last_axes(x, inputs))
        choice = jnp.asarray(self.choice)
        index = jnp.maximum(choice, 0)
        factor = jnp.where(choice < 0, 0, self.factor[index])
        change = self._of_all if choice.ndim == 0 else self._of_rows
        change = change(widen(x), self.a[index], self.b[index], factor, inputs)
        return jnp.where(self._spread(choice < 0, y), y, widen(y) + change).astype(y.dtype)

    def _of_all(self, x: Array, a: Array, b: Array, factor: Array, inputs: int) -> Array:
        low = jax.lax.dot_general(x, a, last_axes(x, inputs))
        return jnp.tensordot(low * factor, b, 1)

    def _of_rows(self, x: Array, a: Array, b: Array, factor: Array, inputs: int) -> Array:
        rows, (count, *rest) = len(factor), x.shape[: x.ndim - inputs] or (0,)
        if x.ndim == inputs or count % rows:
            raise ValueError(
                f"each row chooses an adapter, so rows must be a multiple of {rows}, got x of shape {x.shape}; on a "
                "mesh with pipeline a choice is for all rows"
            )
        a, b = (constrain(part, "batch", *(None,) * (part.ndim - 1)) for part in (a, b))
        several = x.reshape(rows, -1, *x.shape[-inputs:])
        over = tuple(range(2, 2 + inputs)), tuple(range(1, 1 + inputs))
        low = jax.lax.dot_general(several, a, (over, ((0,), (0,)))) * factor[:, None, None]
        change = jax.lax.dot_general(low, b, (((2,), (1,)), ((0,), (0,))))
        return change.reshape(count, *rest, *b.shape[2:])

    def _spread(self, none: Array, y: Array) -> Array:
        """Spread what is of rows over y."""
        if none.ndim == 0:
            return none
        return jnp.repeat(none, y.shape[0] // len(none)).reshape(-1, *(1,) * (y.ndim - 1))

    def merged(self, index: int | None) -> Any:
        """Return the kernel alone, or with the change of an adapter, computed in float32, of the kernel's type."""
        if index is None:
            return self.base
        lead = len(self.layers)
        base = self.base.dequantize() if hasattr(self.base, "dequantize") else self.base
        a, b, factor = (jnp.take(part, index, axis=lead) for part in (self.a, self.b, self.factor))
        rank = a.shape[-1]
        a, b = a.reshape(*self.layers, -1, rank), b.reshape(*self.layers, rank, -1)
        change = jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST) * factor[..., None, None]
        return (widen(base) + change.reshape(base.shape)).astype(base.dtype)


def choose_adapter(model: Any, choice: Int[Array | np.ndarray, "*B"] | int | np.integer) -> Any:
    """Return a model in which adapters are chosen: one for all rows, or one for each of B.

    The choice is data: models with other choices of the same shape share one program.

    Args:
      model: with `AdaptedKernel`s in it.
      choice: numbers of adapters, -1 for none.
    """
    on = np if isinstance(choice, np.ndarray | np.integer | int) else jnp

    def choose(node: Any) -> Any:
        if not isinstance(node, AdaptedKernel):
            return node
        return replace(node, choice=on.broadcast_to(choice, (*node.layers, *on.shape(choice))))

    return jax.tree.map(choose, model, is_leaf=is_adapted)


def is_adapted(node: Any) -> bool:
    """Return whether a node of a model is a kernel with changes beside it."""
    return isinstance(node, AdaptedKernel)


def choosing_rows(model: Any) -> int | None:
    """Return how many rows choose adapters in a model; None where one choice is for all, or there are no adapters."""
    kernels = (node for node in jax.tree.leaves(model, is_leaf=is_adapted) if is_adapted(node))
    shapes = (each.choice.shape[len(each.layers) :] for each in kernels)
    return next((shape[0] for shape in shapes if shape), None)
