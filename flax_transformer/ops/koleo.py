"""Vectors kept apart by the distance to the nearest other one (Sablayrolles et al. 2019,
https://arxiv.org/abs/1806.03198; DINOv2, Oquab et al. 2023, https://arxiv.org/abs/2304.07193).

Axes: B rows, D width.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flax_transformer.ops.norm import unit


def koleo(x: Float[Array, "B D"], real: Bool[Array, " B"], eps: float = 1e-8) -> Float[Array, " B"]:
    """Compute -log |x - its nearest other row| of each row, of directions: the Kozachenko-Leonenko estimate of entropy.

    Gradients go through both rows of a pair. A row that is alone, or not `real`, has 0.

    Args:
      real: rows that count.

    >>> koleo(jnp.array([[1.0, 0.0], [0.0, 3.0]]), jnp.array([True, True])).round(3)
    Array([-0.347, -0.347], dtype=float32)
    """
    x = unit(x.astype(jnp.float32))
    others = real[None] & ~jnp.eye(len(x), dtype=bool)
    cosines = jnp.where(others, jax.lax.stop_gradient(x @ x.T), -jnp.inf)
    apart = jnp.linalg.norm(x - x[cosines.argmax(axis=1)] + eps, axis=1)
    return jnp.where(real & others.any(axis=1), -jnp.log(apart + eps), 0.0)
