"""Exact search among many vectors: the largest inner products with a query, as one product and one selection.

Axes: N vectors, Q queries, D width.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import qwix
from jaxtyping import Array, Float, Int
from qwix import QArray

from flax_transformer.ops.top_k import largest

RESCORED = 8
"""Of vectors in int8, how many candidates for each result are scored again with the query as it is."""
_ROWS = 8
"""Least queries of a product of int8: a product with one row is 25 times slower on a CPU (461 and 19 ms a million)."""


def round_vectors(vectors: Float[Array, "N D"]) -> QArray:
    """Round each vector to int8, with a scale of its own: a quarter of the memory."""
    return qwix.quantize(vectors, "int8", channelwise_axes=(0,))


@partial(jax.jit, static_argnames="top")
def nearest(
    vectors: Float[Array | np.ndarray, "N D"] | QArray, queries: Float[Array | np.ndarray, "Q D"], top: int
) -> tuple[Float[Array, "Q {top}"], Int[Array, "Q {top}"]]:
    """Return the largest inner products with each query and the indices of their vectors, the largest first.

    Of equal products the vector with the lower index comes first. With vectors in int8 (`round_vectors`) queries are
    rounded too, the product is one of integers, and the best `RESCORED` × `top` are scored again with the queries as
    they are.

    Raises:
      ValueError: top is not between 1 and N.

    >>> nearest(jnp.eye(3), jnp.array([[0.1, 0.9, 0.5]]), 2)[1].tolist()
    [[1, 2]]
    """
    count = vectors.shape[0]
    if not 1 <= top <= count:
        raise ValueError(f"top must be between 1 and the number of vectors, got top={top}, N={count}")
    if not isinstance(vectors, QArray):
        return largest(queries @ vectors.T, top)
    found = largest(_rounded_products(vectors, queries), min(RESCORED * top, count))[1]

    def rescore(query: Float[Array, "D"], places: Int[Array, "M"]) -> tuple[Array, Array]:
        places = jnp.sort(places)
        rows = vectors.qvalue[places].astype(query.dtype) * vectors.scale[places].astype(query.dtype)
        scores, order = jax.lax.top_k(rows @ query, top)
        return scores, places[order]

    return jax.vmap(rescore)(queries, found)


def _rounded_products(vectors: QArray, queries: Float[Array, "Q D"]) -> Float[Array, "Q N"]:
    """Multiply rounded queries with rounded vectors; scales of queries, which change no order, are left out."""
    count = queries.shape[0]
    rounded = qwix.quantize(queries, "int8", channelwise_axes=(0,)).qvalue
    rounded = jnp.pad(rounded, ((0, max(_ROWS - count, 0)), (0, 0)))
    products = jax.lax.dot_general(vectors.qvalue, rounded, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)[
        :, :count
    ]
    return (products.astype(jnp.float32) * vectors.scale.astype(jnp.float32)).T
