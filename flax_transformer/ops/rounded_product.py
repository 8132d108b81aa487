"""Products of bfloat16, and their gradients, in the form in which XLA on CPUs multiplies bfloat16 fast.

CPUs that have instructions for bfloat16 add up in float32. XLA uses them where a product returns float32; one that is
to return bfloat16 is multiplied in float32. Here products return float32 on CPUs and are rounded after. Elsewhere, and
of other types, they are `jax.numpy.einsum`.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from flax_transformer.ops.float32 import product
from flax_transformer.ops.linear_map import linear_map
from flax_transformer.ops.platform import platform

Tangent = Array | None


def rounded_product(pattern: str, x: Float[Array, "..."], y: Float[Array, "..."]) -> Float[Array, "..."]:
    """Multiply as `einsum` does, and round the sums to the type of x.

    Args:
      pattern: in which every letter is in two of the three parts at least.
      y: is rounded to the type of x before, such as a kernel of float32.

    >>> x = jnp.ones((2, 3), jnp.bfloat16)
    >>> rounded_product("mk,nk->mn", x, x).dtype
    dtype(bfloat16)
    """
    return _product(pattern, x, y) if widens(pattern, x, y) else jnp.einsum(pattern, x, y.astype(x.dtype))


def product_tangent(pattern: str, operands: tuple[Array, Array], tangents: tuple[Tangent, Tangent]) -> Array:
    """Return the derivative of a product along tangents, rounded to the type of x, for `jax.custom_jvp`.

    Args:
      tangents: of x and y; None: it is zero. Not both are.
    """
    if not widens(pattern, *operands):
        return _sum(jnp.einsum, pattern, operands, tangents)
    # Of bfloat16 that a loop over layers keeps for the backward pass, XLA on CPUs converts all layers' to float32 and
    # back in every turn; of float32 it converts none.
    kept, exact = tuple(each.astype(jnp.float32) for each in operands), operands[1].dtype == jnp.float32
    return linear_map(_tangent, _pull, kept, tangents, pattern=pattern, exact=exact)


def widens(pattern: str, x: Array, y: Array) -> bool:
    """Return whether a product is of bfloat16, here on a CPU, and has a gradient of the same form."""
    if platform() != "cpu" or x.dtype != jnp.bfloat16 or y.dtype not in (jnp.bfloat16, jnp.float32):
        return False
    # Where one has axes that the other lacks, a gradient is summed over an axis that has no letter.
    return "..." not in pattern or x.shape[: _lead(pattern, 0, x)] == y.shape[: _lead(pattern, 1, y)]


def _lead(pattern: str, place: int, x: Array) -> int:
    return x.ndim - len(pattern.split("->")[0].split(",")[place].removeprefix("..."))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _product(pattern: str, x: Array, y: Array) -> Array:
    return _multiply(pattern, x, y)


@partial(_product.defjvp, symbolic_zeros=True)
def _derive(pattern: str, operands: tuple, tangents: tuple) -> tuple[Array, Array]:
    moved = tuple(None if isinstance(tangent, SymbolicZero) else tangent for tangent in tangents)
    # Not a call of the function itself: a remat policy must see the product that it may keep.
    return _multiply(pattern, *operands), product_tangent(pattern, operands, moved)


def _sum(multiply: Any, pattern: str, operands: tuple, tangents: tuple) -> Array:
    (x, y), (to_x, to_y) = operands, tangents
    changes = [] if to_x is None else [multiply(pattern, to_x, y)]
    return sum(changes if to_y is None else [*changes, multiply(pattern, x, to_y)])


def _tangent(operands: tuple, tangents: tuple, *, pattern: str, exact: bool) -> Array:
    return _sum(_multiply, pattern, operands, tangents)


def _pull(operands: tuple, pull: Array, *, pattern: str, exact: bool) -> tuple[Array, Array]:
    (x, y), (given, made) = operands, pattern.split("->")
    of_x, of_y = given.split(",")
    by_y = _summed(f"{of_x},{made}->{of_y}", x, pull)
    return _multiply(f"{made},{of_y}->{of_x}", pull, y), by_y if exact else by_y.astype(jnp.bfloat16)


def _multiply(pattern: str, x: Array, y: Array) -> Array:
    return _summed(pattern, x, y).astype(jnp.bfloat16)


def _summed(pattern: str, x: Array, y: Array) -> Array:
    return product(pattern, x.astype(jnp.bfloat16), y.astype(jnp.bfloat16))
