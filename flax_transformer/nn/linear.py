"""How linear layers start, and how they multiply: as products of two matrices, with kernels that may be in parts."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.custom_derivatives import SymbolicZero
from jax.typing import DTypeLike

from flax_transformer.ops import widen
from flax_transformer.ops.linear_map import linear_map
from flax_transformer.ops.rounded_product import rounded_product, widens
from flax_transformer.parallel import constrain
from flax_transformer.parallel.axis import auto_axes, mesh_axes, parts, unknown_axes
from flax_transformer.parallel.sharding import Axes, logical_axes

_xavier = nnx.initializers.xavier_uniform()


class StructuredKernel(ABC):
    """What may be the kernel of a linear layer in place of an array: a pytree that knows how it is multiplied."""

    @abstractmethod
    def multiply(self, x: jax.Array, inputs: int) -> jax.Array:
        """Multiply the last axes of x, as many as there are inputs."""


def initializer(cfg: Any, default: nnx.Initializer = _xavier, *, residual: bool = False) -> nnx.Initializer:
    """Return what a sublayer's kernels start from: its own standard deviation, or the default of the 2017 model.

    Args:
      cfg: of the sublayer; it has `init_std` and `residual_init_std`.
      residual: whether the layer writes to the residual stream.
    """
    std = cfg.residual_init_std if residual and cfg.residual_init_std is not None else cfg.init_std
    return default if std is None else nnx.initializers.normal(std)


def last_axes(x: jax.Array, inputs: int) -> tuple:
    """Return the dimension numbers of a product of the last axes of x with the first of a kernel.

    >>> last_axes(jax.numpy.ones((2, 3, 4, 5)), 2)
    (((2, 3), (0, 1)), ((), ()))
    """
    return (tuple(range(x.ndim - inputs, x.ndim)), tuple(range(inputs))), ((), ())


def flat_dot_general(
    x: jax.Array,
    kernel: jax.Array,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    **options: Any,
) -> jax.Array:
    """Do what `jax.lax.dot_general` does for a linear layer, on flattened axes.

    Forward it is the same, but a gradient that sums over several axes at once is not turned into one matrix product
    by XLA on CPU; on flattened axes it is. With the sequence split over devices, or something on a mesh whose
    axes nobody has explained, nothing is flattened, since that would mix a split axis with another. A kernel of another
    type is rounded to that of x.
    """
    (over, under), batch = dimension_numbers
    rest = x.ndim - len(over)
    leads = tuple(over) == tuple(range(rest, x.ndim)) and tuple(under) == tuple(range(len(under)))
    flat = leads and not batch[0] and parts("length") == 1 and not unknown_axes(auto_axes())
    shape, inner = kernel.shape, math.prod(kernel.shape[: len(under)])
    options |= {"precision": precision, "preferred_element_type": preferred_element_type}
    if flat and set(options.values()) == {None} and widens("mk,kn->mn", x, kernel):
        y = rounded_product("mk,kn->mn", x.reshape(-1, inner), kernel.reshape(inner, -1))
        return y.reshape(*x.shape[:rest], *shape[len(under) :])
    kernel = cast_where_used(kernel, x.dtype)
    if not flat:
        return jax.lax.dot_general(x, kernel, dimension_numbers, **options)
    y = jax.lax.dot_general(x.reshape(-1, inner), kernel.reshape(inner, -1), (((1,), (0,)), ((), ())), **options)
    return y.reshape(*x.shape[:rest], *shape[len(under) :])


def axes_metadata(axes: Axes) -> dict[str, Any]:
    """Return the metadata by which a parameter says its logical axes: `nnx.Param(x, **axes_metadata(axes))`."""
    return {"out_sharding": axes, "eager_sharding": False}


def _metadata(axes: Axes | None, inputs: int) -> dict[str, dict]:
    """Return the metadata of a kernel and of its bias; None: the sharding table knows them by name."""
    if axes is None:
        return {}
    return {"kernel_metadata": axes_metadata(axes), "bias_metadata": axes_metadata((None,) * len(axes[inputs:]))}


class Linear(nnx.Linear):
    """Flax's, but the bias is added, and its gradient summed, in float32.

    Its kernel says its logical `axes`; None leaves them to the sharding table, by name.
    """

    def __init__(self, inputs: int, outputs: int, *, axes: Axes | None = ("embed", None), **options: Any):
        super().__init__(inputs, outputs, **_metadata(axes, 1), **options)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Multiply the last axis."""
        return _apply(self, x, 1)


class LinearGeneral(nnx.LinearGeneral):
    """Flax's, but the bias is added, and its gradient summed, in float32; `axes` as `Linear`'s."""

    def __init__(self, inputs: Any, outputs: Any, *, axes: Axes | None = None, **options: Any):
        count = 1 if isinstance(inputs, int) else len(inputs)
        super().__init__(inputs, outputs, **_metadata(axes, count), **options)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Multiply as many of the last axes as there are inputs."""
        return _apply(self, x, len(self.in_features))


def whole_kernel(kernel: jax.Array, axes: Axes) -> jax.Array:
    """Gather a kernel that a mesh which splits the width (`fsdp`) has in parts; its gradient is summed and split.

    For layers that are no product of two matrices; those have `Product`.

    Args:
      axes: the logical axes of the kernel.
    """
    return linear_map(_gather, _scatter, (), kernel, axes=axes) if mesh_axes("embed") else kernel


def _gather(_: tuple, kernel: jax.Array, *, axes: Axes) -> jax.Array:
    return constrain(kernel, *(None if axis == "embed" else axis for axis in axes))


def _scatter(_: tuple, gradient: jax.Array, *, axes: Axes) -> jax.Array:
    return constrain(gradient, *axes)


def cast_where_used(kernel: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Cast a kernel, in the layer that it is of, also where `fsdp` has split it.

    There the compiler of TPUs would cast those of all layers before the first, and hold them beside what is stored
    until the backward pass is through. It leaves them where they are if they are rounded first; no number changes.
    """
    if mesh_axes("embed") and kernel.dtype == jnp.float32 and jnp.dtype(dtype) == jnp.bfloat16:
        kernel = linear_map(_round, _pass, (), kernel)
    return kernel.astype(dtype)


def _round(_: tuple, kernel: jax.Array) -> jax.Array:
    short = jnp.finfo(jnp.bfloat16)
    return jax.lax.reduce_precision(kernel, short.nexp, short.nmant)


def _pass(_: tuple, gradient: jax.Array) -> jax.Array:
    return gradient


def _apply(layer: Linear | LinearGeneral, x: jax.Array, inputs: int) -> jax.Array:
    contract = tuple(range(x.ndim - inputs, x.ndim)), tuple(range(inputs))
    x, kernel = x.astype(layer.dtype), layer.kernel.get_value()
    if isinstance(kernel, StructuredKernel):
        y = kernel.multiply(x, inputs)
    else:
        kernel = kernel if isinstance(layer.dot_general, Product) else cast_where_used(kernel, layer.dtype)
        y = layer.dot_general(x, kernel, (contract, ((), ())))
    return y if layer.bias is None else (widen(y) + layer.bias[...]).astype(y.dtype)


@dataclass(frozen=True)
class Product:
    """The product of a linear layer with its kernel, of which the backward pass keeps what the layer was given.

    That is one array for all layers that read it, and no kernel in another shape or type: these a loop over layers
    would keep once more. A mesh that splits the width (`fsdp`) has the kernel in parts. Then each use gathers it, the
    backward pass too, and its gradient is summed and split at once, as fully sharded training means it (Rajbhandari et
    al. 2020, https://arxiv.org/abs/1910.02054). Left to itself the compiler gathers kernels of three axes once more, in
    another layout.
    """

    axes: Axes | str = ("embed", None)
    """The kernel's logical axes, or whose kernel it is by the last part of its path, which the sharding table knows."""

    def __call__(self, x: jax.Array, kernel: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
        """Multiply; the arguments are those of `jax.lax.dot_general`."""
        parted = mesh_axes("embed")
        if not parted and widens("mk,kn->mn", x, kernel):
            return flat_dot_general(x, kernel, *args, **kwargs)  # which has a rule of its own
        kernel, named = cast_where_used(kernel, x.dtype) if parted else kernel, isinstance(self.axes, str)
        axes = logical_axes(f"{self.axes}.kernel", kernel.ndim) if named else self.axes
        return _multiply(_Times(axes, args, (*kwargs.items(),)), x, kernel)


@dataclass(frozen=True)
class _Times:
    """A product with a kernel, which may lie in parts."""

    axes: Axes
    args: tuple
    options: tuple[tuple[str, Any], ...]

    def __call__(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        return self.with_whole(x, self.whole(kernel))

    def with_whole(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        return flat_dot_general(x, kernel, *self.args, **dict(self.options))

    def whole(self, kernel: jax.Array) -> jax.Array:
        return constrain(kernel, *(None if axis == "embed" else axis for axis in self.axes))

    def split(self, gradient: jax.Array) -> jax.Array:
        return constrain(gradient, *self.axes)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _multiply(times: _Times, x: jax.Array, kernel: jax.Array) -> jax.Array:
    return times(x, kernel)


@partial(_multiply.defjvp, symbolic_zeros=True)
def _derive(times: _Times, operands: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    # Not a call of the function itself: a remat policy must see the product that it may keep.
    moved = tuple(None if isinstance(tangent, SymbolicZero) else tangent for tangent in tangents)
    return times(*operands), linear_map(_tangent, _backward, operands, moved, times=times)


def _tangent(operands: tuple, tangents: tuple, *, times: _Times) -> jax.Array:
    (x, kernel), (to_x, to_kernel) = operands, tangents
    changes = [] if to_x is None else [times(to_x, kernel)]
    return sum(changes if to_kernel is None else [*changes, times(x, to_kernel)])


def _backward(operands: tuple, pull: jax.Array, *, times: _Times) -> tuple[jax.Array, jax.Array]:
    x, kernel = operands
    whole = times.whole(kernel)
    if widens("mk,kn->mn", x, kernel):  # which has a rule of its own
        to_x, to_kernel = jax.vjp(times.with_whole, x, whole)[1](pull)
    else:  # linear in each, so that nothing is multiplied again
        (to_x,) = jax.linear_transpose(lambda x: times.with_whole(x, whole), x)(pull)
        (to_kernel,) = jax.linear_transpose(lambda kernel: times.with_whole(x, kernel), whole)(pull)
    return to_x, times.split(to_kernel)
