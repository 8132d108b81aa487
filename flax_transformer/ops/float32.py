"""Arithmetic on short floats that rounds once: in float32, or in float64 if that is what there is."""

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float


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
    return jnp.einsum(pattern, x, y, preferred_element_type=at_least_float32(jnp.result_type(x, y)))


def zeros(x: Array) -> Array:
    """Make zeros in the shape of an array, to add up in: float32 or more."""
    return jnp.zeros(x.shape, at_least_float32(x.dtype))
