"""How linear layers start, and how they multiply: as products of two matrices, with kernels that may be in parts."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from flax import nnx
from jax.typing import DTypeLike

from flax_transformer.nn.config import BlockConfig
from flax_transformer.ops import widen
from flax_transformer.parallel import gather_parameter
from flax_transformer.parallel.axis import auto_axes, parts, unknown_axes

_xavier = nnx.initializers.xavier_uniform()


def initializer(cfg: BlockConfig, default: nnx.Initializer = _xavier, *, residual: bool = False) -> nnx.Initializer:
    """Give what a block's kernels start from: its own standard deviation, or the default of the 2017 model.

    Args:
      residual: whether the layer writes to the residual stream.
    """
    std = cfg.residual_init_std if residual and cfg.residual_init_std is not None else cfg.init_std
    return default if std is None else nnx.initializers.normal(std)


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
    axes nobody has explained, nothing is flattened, since that would mix a split axis with another.
    """
    (over, under), batch = dimension_numbers
    rest = x.ndim - len(over)
    leads = tuple(over) == tuple(range(rest, x.ndim)) and tuple(under) == tuple(range(len(under)))
    if batch[0] or not leads or parts("length") > 1 or unknown_axes(auto_axes()):
        return jax.lax.dot_general(
            x, kernel, dimension_numbers, precision=precision, preferred_element_type=preferred_element_type, **options
        )
    inner = math.prod(kernel.shape[: len(under)])
    outputs = kernel.shape[len(under) :]
    y = jax.lax.dot_general(
        x.reshape(-1, inner), kernel.reshape(inner, -1), (((1,), (0,)), ((), ())), precision=precision,
        preferred_element_type=preferred_element_type, **options,
    )  # fmt: skip
    return y.reshape(*x.shape[:rest], *outputs)


class Linear(nnx.Linear):
    """Flax's, but the bias is added, and its gradient summed, in float32."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Multiply the last axis."""
        return _apply(self, x, 1)


class LinearGeneral(nnx.LinearGeneral):
    """Flax's, but the bias is added, and its gradient summed, in float32."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Multiply as many of the last axes as there are inputs."""
        return _apply(self, x, len(self.in_features))


def _apply(layer: Linear | LinearGeneral, x: jax.Array, inputs: int) -> jax.Array:
    contract = tuple(range(x.ndim - inputs, x.ndim)), tuple(range(inputs))
    y = layer.dot_general(x.astype(layer.dtype), layer.kernel[...].astype(layer.dtype), (contract, ((), ())))
    return y if layer.bias is None else (widen(y) + layer.bias[...]).astype(y.dtype)


@dataclass(frozen=True)
class Product:
    """The product of a linear layer with its kernel, which a mesh that splits the width (`fsdp`) has in parts.

    Then each use gathers the kernel, the backward pass too, and the kernel's gradient is summed and split at once, as
    fully sharded training means it (Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054). Left to itself the
    compiler gathers kernels of three axes once more, in another layout. On such a mesh there is no forward-mode
    differentiation, as it is a `jax.custom_vjp`.
    """

    layer: str
    """Whose kernel it is, by the last part of its path; the sharding table must have a rule for it."""

    def __call__(self, x: jax.Array, kernel: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
        """Multiply; the arguments are those of `jax.lax.dot_general`."""
        multiply = lambda x, kernel: flat_dot_general(x, kernel, *args, **kwargs)  # noqa: E731
        return (
            _multiply_whole(multiply, f"{self.layer}.kernel", x, kernel) if parts("embed") > 1 else multiply(x, kernel)
        )


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _multiply_whole(multiply: Callable, name: str, x: jax.Array, kernel: jax.Array) -> jax.Array:
    return multiply(x, gather_parameter(kernel, name))


def _forward(multiply: Callable, name: str, x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple]:
    # Not a call of the function itself: a remat policy must see the product that it may keep.
    return multiply(x, gather_parameter(kernel, name)), (x, kernel)


def _backward(multiply: Callable, name: str, kept: tuple, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = kept
    return jax.vjp(lambda x, kernel: multiply(x, gather_parameter(kernel, name)), x, kernel)[1](gradient)


_multiply_whole.defvjp(_forward, _backward)
