"""Products of short floats that are not rounded to short floats."""

from functools import partial

import jax
from jaxtyping import Array, Float

from flax_transformer.ops.float32 import product, widen
from flax_transformer.ops.rounded_product import product_tangent


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def float32_product(pattern: str, x: Float[Array, "..."], y: Float[Array, "..."]) -> Float[Array, "..."]:
    """Multiply as `einsum` does, and give what it adds up in: float32 or more.

    >>> x = jax.numpy.array([1.0, 2**-9], jax.numpy.bfloat16)
    >>> float(float32_product("i,i->", x, x / x))
    1.001953125
    """
    return product(pattern, x, y)


@float32_product.defjvp
def _slope(pattern: str, given: tuple[Array, Array], changes: tuple[Array, Array]) -> tuple[Array, Array]:
    # Rounded like the operands, so that the backward pass multiplies short floats by short floats, never by float32.
    return float32_product(pattern, *given), widen(product_tangent(pattern, given, changes))
