"""Attention in which a query that sees nothing looks at everything alike, as T5's does (Raffel et al. 2020).

There what is hidden gets a very small score, to which those of the keys add nothing: where all are hidden, all weigh
the same. Of whole rows of padding, and of padding before a sentence, that is what T5 makes.

Axes: B batch, T query positions, S key positions, N query heads, K key/value heads, H head width.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flax_transformer.ops.attention.dispatch import attention
from flax_transformer.ops.dropout import Dropout
from flax_transformer.ops.mask import Mask


def attention_uniform_on_empty(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K H"],
    mask: Mask | None = None,
    bias: Float[Array, "*#B #N #T #S"] | None = None,
    *,
    scale: float | None = None,
    dropout: Dropout | None = None,
) -> Float[Array, "*B T N H"]:
    """Attend as `attention` does, where a query sees any key; where it sees none, give the mean of all values.

    >>> q, v = jnp.zeros((2, 1, 2)), jnp.array([[[0.0, 4.0]], [[2.0, 0.0]]])
    >>> attention_uniform_on_empty(q, v, v, Mask(dense=jnp.array([[True, False], [False, False]])))[:, 0]
    Array([[0., 4.],
           [1., 2.]], dtype=float32)
    """
    y = attention(q, k, v, mask, bias, scale=scale, dropout=dropout)
    T, S = q.shape[-3], k.shape[-3]
    if mask is None or (not jax.tree.leaves(mask) and mask.window is None and T <= S):
        return y  # who sees the past sees something
    sees = mask.materialize(T, S).any(axis=-1)
    mean = jnp.repeat(jnp.mean(v, axis=-3, keepdims=True, dtype=jnp.float32), q.shape[-2] // v.shape[-2], axis=-2)
    return jnp.where(jnp.moveaxis(sees, -2, -1)[..., None], y, mean.astype(y.dtype))
