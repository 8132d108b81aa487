"""How alike the layers of models are: centred kernel alignment.

Axes: L layers, P others, n examples, D and E widths.
"""

from collections.abc import Callable

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


@jax.default_matmul_precision("highest")
def debiased_cka(x: Float[Array, "n D"], y: Float[Array, "n E"]) -> Float[Array, ""]:
    """Return linear CKA by unbiased estimates of its parts (Nguyen et al. 2021, https://arxiv.org/abs/2010.15327,
    equation 3), for fewer examples than widths: there `linear_cka` is close to 1 whatever is compared.

    Of representations that have nothing in common it is 0 on average, so that single values are below 0 too; it is
    NaN where there are fewer than four examples.

    >>> x, y = jax.random.normal(jax.random.key(0), (2, 8, 64))
    >>> float(debiased_cka(x, 5 * x)) > 0.999, bool(abs(debiased_cka(x, y)) < 0.5 < linear_cka(x, y))
    (True, True)
    """
    if (n := x.shape[0]) < 4:
        return jnp.full((), jnp.nan, x.dtype)
    # Inner products of centred rows are those that were, up to what the estimate cancels, with less to be rounded.
    products = [a @ a.T * (1 - jnp.eye(n, dtype=a.dtype)) for a in (x - x.mean(0), y - y.mean(0))]

    def shared(k: Array, o: Array) -> Array:
        sums = k.sum() * o.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * jnp.dot(k.sum(0), o.sum(0))
        return jnp.sum(k * o) + sums

    own = jnp.sqrt(jnp.maximum(shared(products[0], products[0]) * shared(products[1], products[1]), 0))
    return shared(*products) / own


def cka_of_layers(
    x: Float[Array, "L n D"],
    y: Float[Array, "P n E"],
    measure: Callable[[Array, Array], Array] = linear_cka,
) -> Float[Array, "L P"]:
    """Return the CKA of every layer of one model with every layer of another, on the same examples.

    Args:
      measure: `linear_cka`, or `debiased_cka` where there are fewer examples than widths.
    """
    return jnp.stack([jnp.stack([measure(a, b) for b in y]) for a in x])
