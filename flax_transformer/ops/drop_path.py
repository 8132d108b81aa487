"""Stochastic depth: rows that now and then do without a layer (Huang et al. 2016, https://arxiv.org/abs/1603.09382)."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.ops.float32 import widen
from flax_transformer.ops.row_random import drawn


def drop_path(
    x: Float[Array, "*B T D"], rate: Float[Array, ""] | float, key: PRNGKeyArray | None
) -> Float[Array, "*B T D"]:
    """Zero whole rows, each with probability `rate`, and scale the rest so that the mean stays; no key, no dropping.

    Args:
        rate: in [0, 1); it may be traced, as when each layer of a stack has its own.

    >>> rows = drop_path(jnp.ones((6, 1, 2)), 0.5, jax.random.key(0))
    >>> sorted(set(rows.ravel().tolist()))
    [0.0, 2.0]
    """
    if isinstance(rate, int | float):
        if not 0 <= rate < 1:
            raise ValueError(f"a drop-path rate must lie in [0, 1), got {rate}")
        if rate == 0:
            return x
    if key is None:
        return x
    draws = drawn(partial(jax.random.uniform, key), x.shape[:-2])
    return jnp.where((draws >= rate)[..., None, None], (widen(x) / (1 - rate)).astype(x.dtype), 0)
