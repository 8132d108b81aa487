"""Kernels of few bits, and products with them: values, and a scale for each output channel or group of inputs.

The arithmetic is that of qwix (https://github.com/google/qwix). Axes: G groups, of consecutive inputs.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import qwix
from jaxtyping import Array, Float, Int
from qwix import QArray

from flax_transformer.nn.linear import StructuredKernel, last_axes

BITS = {"int8": 8, "int4": 4, "nf4": 4, "float8_e4m3fn": 8}
"""Kinds of values, and bits of one; nf4 is a table of 16 normal quantiles (Dettmers et al. 2023,
https://arxiv.org/abs/2305.14314)."""
ACTIVATIONS = ("int8", "float8_e4m3fn")
SCALE = "bfloat16"
"""What scales are kept in: of float32's range, which float16, as some published folders have it, is not. Those of nf4
stay in float32."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Quantized(StructuredKernel):
    """A kernel [*layers, *inputs, *outputs] of few bits; `multiply` is a product with it.

    It stands in the place of an array in a parameter, so that `jit`, `scan`, `vmap` and checkpoints take it.
    """

    values: Any
    """Of the kernel's shape."""
    scale: Any
    """Of its rank: an axis is as long as the kernel's, or as its groups, or 1. Of any type of floats."""
    zero: Any = None
    """The value that stands for 0, of the scale's shape; None: 0 does."""
    input_scale: Any = None
    """What inputs are divided by, [*layers]; None: what each row asks for."""
    kind: str = field(default="int8", metadata={"static": True})
    """One of `BITS`."""
    activations: str | None = field(default=None, metadata={"static": True})
    """What inputs are rounded to, one of `ACTIVATIONS`; None: they are not."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the kernel that it stands for."""
        return self.values.shape

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return self.values.ndim

    @property
    def size(self) -> int:
        """How many values it has."""
        return self.values.size

    @property
    def dtype(self) -> Any:
        """The floats that it stands for."""
        return jnp.promote_types(self.scale.dtype, jnp.float32)

    @property
    def bits(self) -> float:
        """The bits of a value, with its part of the scales."""
        parts = [part for part in (self.scale, self.zero) if part is not None]
        extra = sum(part.size * (BITS[self.kind] if part is self.zero else 8 * part.dtype.itemsize) for part in parts)
        return BITS[self.kind] + extra / self.size

    def dequantize(self) -> Float[Array, "..."]:
        """Return the kernel that it stands for, in float32 or the scales' own type if that is wider."""
        return qwix.dequantize(_array(self))

    def multiply(self, x: Float[Array, "..."], inputs: int) -> Float[Array, "..."]:
        """Multiply the last axes of x, as many as there are inputs; the result has the type of x."""
        numbers = last_axes(x, inputs)
        if self.activations is None:
            whole = math.prod(self.scale.shape[:inputs]) == 1 and self.zero is None and self.kind != "nf4"
            if whole:  # one scale an output: that of the product
                y = jax.lax.dot_general(x, self.values.astype(x.dtype), numbers)
                return (y * self.scale.reshape(self.scale.shape[inputs:])).astype(x.dtype)
            return jax.lax.dot_general(x, self.dequantize().astype(x.dtype), numbers)
        return qwix.dot_general(self.rounded(x, inputs), _array(self), numbers).astype(x.dtype)

    def rounded(self, x: Float[Array, "..."], inputs: int) -> QArray:
        """Round inputs: each row by its own largest value, or all by the scale that is known."""
        wide = x.astype(jnp.float32)
        if self.input_scale is None:
            return qwix.quantize(wide, self.activations, channelwise_axes=tuple(range(x.ndim - inputs)))
        scale = self.input_scale.astype(jnp.float32).reshape((1,) * x.ndim)
        most = largest_value(self.activations)
        values = jnp.clip(wide / scale, -most, most)
        values = values if self.activations.startswith("float") else jnp.round(values)
        return QArray(values.astype(self.activations), scale, None, jnp.dtype(self.activations))

    def take(self, rows: Int[Array, "*B"]) -> Float[Array, "*B D"]:
        """Look up rows of a table [V, D]; NaN for one that it has not."""
        parts = {name: jnp.take(part, rows, axis=0, mode="clip") for name, part in _parts(self).items()}
        inside = (rows >= -self.shape[0]) & (rows < self.shape[0])
        return jnp.where(inside[..., None], replace(self, **parts).dequantize(), jnp.nan)

    def attend(self, x: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Multiply with the rows of a table [V, D]; the result is float32."""
        numbers = ((x.ndim - 1,), (1,)), ((), ())
        rows = _array(self)
        x = x if self.activations is None else self.rounded(x, 1)
        return qwix.dot_general(x, rows, numbers, preferred_element_type=jnp.float32)


def largest_value(kind: str) -> float:
    """Return the largest value of what inputs are rounded to, one of `ACTIVATIONS`.

    >>> largest_value("int8"), largest_value("float8_e4m3fn")
    (127.0, 448.0)
    """
    return float(jnp.finfo(kind).max) if kind.startswith("float") else 127.0


def _parts(kernel: Quantized) -> dict[str, Any]:
    names = ("values", "scale", "zero")
    return {name: getattr(kernel, name) for name in names if getattr(kernel, name) is not None}


def _array(kernel: Quantized) -> QArray:
    scale = kernel.scale if kernel.scale.dtype.itemsize > 2 else kernel.scale.astype(jnp.float32)
    if kernel.kind == "nf4":
        return QArray((kernel.values.astype(jnp.int8) + 8).astype(jnp.uint4), scale, kernel.zero, "nf4")
    return QArray(kernel.values, scale, kernel.zero, jnp.dtype(kernel.kind))


def _stored(values: Array, kind: str) -> Array:
    """Return values as they are kept: the 16 indices of nf4 from −8 on, as checkpoints know no uint4."""
    return (values.astype(jnp.int8) - 8).astype(jnp.int4) if kind == "nf4" else values


def quantize(
    kernel: Float[Array, "..."], kind: str, *, layers: int = 0, inputs: int = 1, group: int | None = None,
    clip: float = 1.0, scale_dtype: Any = SCALE,
) -> Quantized:  # fmt: skip
    """Round a kernel [*layers, *inputs, *outputs] to the nearest values.

    Args:
      kind: one of `BITS`.
      layers: how many axes are of layers, each of which has scales of its own.
      inputs: how many axes are inputs.
      group: inputs that share a scale, as consecutive ones of an output; None: all of an output's.
      clip: the share of each group's largest value that is still represented.
      scale_dtype: of the scales, by which values are rounded.

    Raises:
      ValueError: groups that do not divide the inputs, or an unknown kind.

    >>> quantize(jnp.array([[1.0, -0.5], [0.25, 0.5]]), "int8").values.tolist()
    [[127, -127], [32, 127]]
    """
    check_kind(kind)
    tiles = group_tiles(kernel.shape, layers, inputs, group)
    # Inputs before the axis that groups lie in have groups of their own at each index; those after it are within one.
    first, last = min(tiles, default=layers), layers + inputs
    free = tuple(axis for axis in range(kernel.ndim) if not first <= axis < last)
    how = {"channelwise_axes": free, "tiled_axes": tiles, "calibration_method": f"absmax,{clip}"}
    return _quantize(kernel, kind, how, scale_dtype)


def quantize_table(table: Float[Array, "V D"], kind: str, *, group: int | None = None) -> Quantized:
    """Round a table to the nearest values, with a scale for each row, or group of its columns."""
    check_kind(kind)
    return _quantize(table, kind, {"channelwise_axes": (0,), "tiled_axes": {} if group is None else {1: group}}, SCALE)


def _quantize(whole: Float[Array, "..."], kind: str, how: dict[str, Any], scale_dtype: Any) -> Quantized:
    array = qwix.quantize(whole.astype(jnp.float32), "nf4" if kind == "nf4" else jnp.dtype(kind), **how)
    if kind != "nf4" and scale_dtype != array.scale.dtype:
        scale = array.scale.astype(scale_dtype)
        ones = replace(array, qvalue=jnp.ones(whole.shape, jnp.int8), scale=scale.astype(jnp.float32))
        array = replace(array, qvalue=round_values(whole / qwix.dequantize(ones), kind), scale=scale)
    return Quantized(_stored(array.qvalue, kind), array.scale, array.zero_point, kind=kind)


def round_values(x: Float[Array, "..."], kind: str) -> Array:
    """Round to the nearest of the values that a kind has: whole numbers or float8."""
    if kind.startswith("float"):
        return jnp.clip(x, -largest_value(kind), largest_value(kind)).astype(kind)
    known = jnp.iinfo(kind)
    return jnp.clip(jnp.round(x), int(known.min), int(known.max)).astype(kind)


def check_kind(kind: str) -> None:
    """Check that values of a kind are known; raise ValueError if not."""
    if kind not in BITS:
        raise ValueError(f"weights must be one of {', '.join(BITS)}, got {kind!r}")


def group_tiles(shape: tuple[int, ...], layers: int, inputs: int, group: int | None) -> dict[int, int]:
    """Return how many inputs of each input axis a group spans, of those axes that it does not span whole.

    Raises:
      ValueError: groups that do not divide the inputs.

    >>> group_tiles((4, 64, 512), 0, 2, 32), group_tiles((4, 64, 512), 0, 2, 128)
    ({1: 32}, {0: 2})
    """
    if group is None:
        return {}
    sizes, left = shape[layers : layers + inputs], group
    if group >= 1 and math.prod(sizes) % group == 0:
        for axis in reversed(range(layers, layers + inputs)):
            if left <= shape[axis] and shape[axis] % left == 0:
                return {axis: left}
            if left % shape[axis]:
                break
            left //= shape[axis]
    raise ValueError(
        f"groups must divide the inputs, along their last axis or by whole ones, got group={group} for inputs "
        f"{'×'.join(map(str, sizes))}"
    )


def concatenate(kernels: list[Any], axis: int) -> Any:
    """Join kernels of the same inputs along an axis of outputs: arrays, or quantized ones of one kind."""
    if not isinstance(kernels[0], Quantized):
        return jnp.concatenate(kernels, axis=axis)
    parts = {name: [getattr(each, name) for each in kernels] for name in _parts(kernels[0])}
    return replace(kernels[0], **{name: jnp.concatenate(each, axis=axis) for name, each in parts.items()})


def stored_bytes(count: int, dtype: Any) -> int:
    """Return the bytes of so many numbers of a type in memory, where two of 4 bits share one.

    >>> stored_bytes(5, jnp.int4), stored_bytes(5, jnp.bfloat16)
    (3, 10)
    """
    dtype = jnp.dtype(dtype)
    return -(-count // 2) if dtype in (jnp.int4, jnp.uint4) else count * dtype.itemsize


def is_quantized(node: Any) -> bool:
    """Return whether a node of a model is a kernel of few bits."""
    return isinstance(node, Quantized)
