"""Arithmetic on short floats that rounds once: in float32, or in float64 if that is what there is."""

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from flax_transformer.ops.platform import platform


def at_least_float32(dtype: DTypeLike) -> jnp.dtype:
    """Return the type to compute in, at least float32.

    >>> at_least_float32("bfloat16"), at_least_float32("float32")
    (dtype('float32'), dtype('float32'))
    """
    dtype = jnp.dtype(dtype)  # not `promote_types`, which strict promotion forbids
    return dtype if dtype.itemsize >= 4 and jnp.issubdtype(dtype, jnp.inexact) else jnp.dtype(jnp.float32)


def widen(x: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Return an array at least 32 bits.

    >>> widen(jnp.ones(2, jnp.float16)).dtype
    dtype('float32')
    """
    return x.astype(at_least_float32(x.dtype))


def scaled(x: Float[Array, "*B"], factor: float) -> Float[Array, "*B"]:
    """Multiply by a factor that may have no short float of its own, and round the product alone.

    >>> x = jnp.array(3, jnp.bfloat16)
    >>> float(scaled(x, 1.1)), float(x * jnp.bfloat16(1.1))
    (3.296875, 3.3125)
    """
    return (widen(x) * factor).astype(x.dtype)


def product(pattern: str, x: Array, y: Array) -> Array:
    """Multiply as `einsum` does; sums are float32 or more."""
    dtype = at_least_float32(jnp.result_type(x, y))
    if x.dtype == y.dtype == jnp.bfloat16 and _of_matrices(pattern) and _alone_on_cpu():
        pattern, x, y = _in_order(pattern, x, y)
    return jnp.einsum(pattern, x, y, preferred_element_type=dtype)


def _of_matrices(pattern: str) -> bool:
    return "..." not in pattern and len(pattern) == len("mk,kn->mn")


def _alone_on_cpu() -> bool:
    return platform() == "cpu" and jax.sharding.get_abstract_mesh().empty


def _in_order(pattern: str, x: Array, y: Array) -> tuple[str, Array, Array]:
    """Put the matrix of the product's rows first, and its rows so in memory that they are summed over.

    XLA on CPUs multiplies bfloat16 in float32 where the first axis of the first matrix is summed over.
    """
    given, made = pattern.split("->")
    of_x, of_y = given.split(",")
    if made[0] not in of_x:
        of_x, of_y, x, y = of_y, of_x, y, x
    if of_x[1] == made[0]:
        of_x, x = of_x[::-1], with_layout_constraint(x.T, Layout((0, 1)))
    return f"{of_x},{of_y}->{made}", x, y


def zeros(x: Array) -> Array:
    """Make zeros in the shape of an array, to add up in: float32 or more."""
    return jnp.zeros(x.shape, at_least_float32(x.dtype))
