"""How alike the layers of models are: centred kernel alignment.

Axes: L layers, P others, n examples, D and E widths.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.default_matmul_precision("highest")
def linear_cka(x: Float[Array, "n D"], y: Float[Array, "n E"]) -> Float[Array, ""]:
    """Return the linear CKA of two representations of the same examples (Kornblith et al. 2019,
    https://arxiv.org/abs/1905.00414, equation 6): 1 where they differ by rotation and scale alone, 0 where they have
    nothing in common.

    >>> x = jnp.array([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
    >>> round(float(linear_cka(x, 5 * x[:, ::-1])), 6)
    1.0
    """
    x, y = x - x.mean(0), y - y.mean(0)
    both = jnp.sum((y.T @ x) ** 2)
    return both / (jnp.linalg.norm(x.T @ x) * jnp.linalg.norm(y.T @ y))


def cka_of_layers(x: Float[Array, "L n D"], y: Float[Array, "P n E"]) -> Float[Array, "L P"]:
    """Return the linear CKA of every layer of one model with every layer of another, on the same examples."""
    return jnp.stack([jnp.stack([linear_cka(a, b) for b in y]) for a in x])
