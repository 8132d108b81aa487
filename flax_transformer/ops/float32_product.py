"""Products of short floats that are not rounded to short floats."""

from functools import partial
from typing import Any

import jax
from jaxtyping import Array, Float

from flax_transformer.ops.float32 import at_least_float32, widen


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def float32_product(x: Float[Array, "..."], y: Float[Array, "..."], dimension_numbers: Any) -> Float[Array, "..."]:
    """Do what `jax.lax.dot_general` does, and give what it adds up in: float32 or more.

    >>> x = jax.numpy.array([1.0, 2**-9], jax.numpy.bfloat16)
    >>> float(float32_product(x, x / x, (((0,), (0,)), ((), ()))))
    1.001953125
    """
    return jax.lax.dot_general(x, y, dimension_numbers, preferred_element_type=at_least_float32(x.dtype))


@float32_product.defjvp
def _slope(dimension_numbers: Any, given: tuple[Array, Array], changes: tuple[Array, Array]) -> tuple[Array, Array]:
    # Rounded like the operands, so that the backward pass multiplies short floats by short floats, never by float32.
    multiply = partial(jax.lax.dot_general, dimension_numbers=dimension_numbers)
    (x, y), (to_x, to_y) = given, changes
    return float32_product(x, y, dimension_numbers), widen(multiply(to_x, y) + multiply(x, to_y))
