"""Late interaction: each token of a query looks for the token of a passage most like it (Khattab & Zaharia 2020,
https://arxiv.org/abs/2004.12832).

Axes: Q queries, T positions of a query, N passages, S positions of a passage, D width.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float


def max_similarity(
    queries: Float[Array | np.ndarray, "Q T D"],
    passages: Float[Array | np.ndarray, "N S D"],
    query_mask: Bool[Array | np.ndarray, "Q T"] | None = None,
    passage_mask: Bool[Array | np.ndarray, "N S"] | None = None,
) -> Float[Array, "Q N"]:
    """Sum over the tokens of each query the largest inner product with a token of each passage (MaxSim).

    Passages are gone through one by one, so that the products of all tokens are never held at once. A passage without
    any token scores −inf.

    Args:
      query_mask: which tokens of a query count; all by default.
      passage_mask: which tokens of a passage can be found; all by default.

    >>> query = jnp.eye(2)[None]
    >>> max_similarity(query, jnp.array([[[0.5, 0.0], [0.0, 0.25]], [[1.0, 0.0], [1.0, 0.0]]])).tolist()
    [[0.75, 1.0]]
    """
    seen = jnp.ones(passages.shape[:2], bool) if passage_mask is None else passage_mask
    counts = jnp.ones(queries.shape[:2], queries.dtype) if query_mask is None else query_mask.astype(queries.dtype)

    def score(passage: tuple[Array, Array]) -> Float[Array, "Q"]:
        tokens, real = passage
        best = jnp.where(real, jnp.einsum("qtd,sd->qts", queries, tokens), -jnp.inf).max(-1)
        return jnp.where(counts > 0, best * counts, 0).sum(-1)

    return jax.lax.map(score, (passages, seen)).T
