"""Rows assigned to prototypes so that all of these get as much (Sinkhorn & Knopp 1967; Caron et al. 2020, §3.1,
https://arxiv.org/abs/2006.09882).

Axes: R rows, E prototypes.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def sinkhorn(scores: Float[Array, "R E"], real: Bool[Array, " R"], steps: int = 3) -> Float[Array, "R E"]:
    """Return a distribution over prototypes for each row, near softmax(scores), of which every prototype has R / E.

    In each step the columns are divided by their sums, then the rows: after the last rows sum to 1 exactly, columns
    nearly to the same. It is computed by logarithms, so that no column can vanish.

    Args:
      real: rows that count; others get a distribution too, and change nothing.

    >>> sinkhorn(jnp.array([[2.0, 0.0], [2.0, 0.0]]), jnp.array([True, True])).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    found = scores
    for _ in range(steps):
        column = jax.nn.logsumexp(jnp.where(real[:, None], found, -jnp.inf), axis=0)
        found = jax.nn.log_softmax(found - jnp.where(jnp.isfinite(column), column, 0.0), axis=1)
    return jnp.exp(found)
