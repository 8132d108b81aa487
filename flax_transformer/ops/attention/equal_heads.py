"""Attention functions that know as many key/value heads as query heads, for layers with fewer.

Axes as in `attention`.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float


def equal_heads(attend: Callable[..., Array]) -> Callable[..., Array]:
    """Decorate an attention function that knows equal heads alone: it is given keys and values N / K times each.

    Query head n gets key/value head `n // (N / K)`, as in `attention` (Ainslie et al. 2023,
    https://arxiv.org/abs/2305.13245). At the level of a module, the result is fit for `AttentionConfig(attend=…)`. It
    takes N / K times the memory for keys and values that a function takes which knows groups, as `attention` does.

    >>> @equal_heads
    ... def first_value(q, k, v, mask=None, bias=None, *, scale=None):
    ...     return jnp.broadcast_to(v[..., :1, :, :], q.shape)
    >>> v = jnp.arange(2.0).reshape(1, 2, 1)
    >>> first_value(jnp.zeros((1, 4, 1)), v, v)[0, :, 0]
    Array([0., 0., 1., 1.], dtype=float32)
    """

    @wraps(attend)
    def call(
        q: Float[Array, "*B T N H"],
        k: Float[Array, "*B S K H"],
        v: Float[Array, "*B S K H"],
        *args: Any,
        **options: Any,
    ) -> Float[Array, "*B T N H"]:
        N, K = q.shape[-2], k.shape[-2]
        if N % K:
            raise ValueError(f"query heads must be a multiple of kv heads, got N={N}, K={K}")
        if N > K:
            k, v = (jnp.repeat(x, N // K, axis=-2) for x in (k, v))
        return attend(q, k, v, *args, **options)

    return call
