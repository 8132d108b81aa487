"""How low the rank of attention matrices is: what Linformer builds on (Wang et al. 2020, §3,
https://arxiv.org/abs/2006.04768). An analysis of weights that `ops.capture` or `attention_weights` gives.

Axes: B batch, layers, heads; T query positions, S key positions.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flax_transformer.ops.float32 import at_least_float32

Either = Array | np.ndarray


def spectrum(weights: Float[Either, "*B T S"]) -> Float[Either, "*B R"]:
    """Return the singular values of matrices, the largest first: of NumPy's by NumPy, so that nothing is compiled.

    >>> spectrum(jnp.eye(2)).tolist()
    [1.0, 1.0]
    """
    library = np if isinstance(weights, np.ndarray) else jnp
    return library.linalg.svd(weights.astype(at_least_float32(weights.dtype)), compute_uv=False)


def spectrum_rank(weights: Float[Either, "*B T S"], share: float = 0.9) -> Int[Either | np.integer, "*B"]:
    """Return the rank that keeps a share of the sum of the singular values.

    Raises:
      ValueError: a share that is none.

    >>> spectrum_rank(jnp.diag(jnp.array([6.0, 3.0, 1.0])), 0.9).tolist()
    2
    """
    if not 0 < share <= 1:
        raise ValueError(f"a share of the spectrum is above 0 and at most 1, got {share}")
    values = spectrum(weights)
    enough = (share - 1e-6) * values.sum(axis=-1, keepdims=True)
    return (values.cumsum(axis=-1) < enough).sum(axis=-1) + 1


def rank_error(weights: Float[Either, "*B T S"], rank: int) -> Float[Array, "*B"]:
    """Return how far the best matrix of a rank is from each: the norm of the difference, as a share of the norm.

    Raises:
      ValueError: a rank larger than the matrices have room for.

    >>> round(float(rank_error(jnp.diag(jnp.array([4.0, 3.0])), 1)), 6)
    0.6
    """
    most = min(weights.shape[-2:])
    if not 1 <= rank <= most:
        raise ValueError(f"a rank must be at least 1 and at most the length, {most}, got {rank}")
    squares = spectrum(weights) ** 2
    return jnp.sqrt(squares[..., rank:].sum(axis=-1) / squares.sum(axis=-1))
