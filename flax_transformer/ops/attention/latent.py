"""Attention to compressed keys and values that all heads share, of one token or a few (DeepSeek-AI 2024, DeepSeek-V2,
https://arxiv.org/abs/2405.04434, §2.1).

Axes: B batch, T query positions, S key positions, N query heads, C latent width, R rotary width.
"""

from jaxtyping import Array, Float
from qwix import QArray

from flax_transformer.ops.attention.xla import attention_logits, masked_softmax, mix_weights
from flax_transformer.ops.mask import Mask, check_mask
from flax_transformer.parallel.explicit import implicit


@implicit("q")
def latent_attention(
    q: Float[Array, "*B T N C"],
    turned: Float[Array, "*B T N R"],
    latent: Float[Array, "*B S 1 C"] | QArray,
    key: Float[Array, "*B S 1 R"] | QArray,
    mask: Mask | None = None,
    bias: Float[Array, "*#B #N #T #S"] | None = None,
    *,
    scale: float,
) -> Float[Array, "*B T N C"]:
    """Mix latents by the softmax of scores that are sums of two products: with the latents, and with rotary keys.

    It materialises the scores, T × S of each head: for few queries, as in decoding.

    Args:
        q: queries in the space of the latents, by the absorbed up-projection of keys.
        turned: queries turned by their positions.
        latent: what keys and values are made of; of few bits with scales [*B, S, 1, 1].
        key: rotary keys that all heads share, likewise.
        mask: what each query sees; None is everything. A query that sees nothing gets zeros.
        bias: added to the scaled scores.
        scale: factor on both products.

    Raises:
        ValueError: a mask that does not fit.

    >>> import jax.numpy as jnp
    >>> q, latent = jnp.zeros((1, 2, 3)), jnp.array([[[1.0, 2.0, 3.0]], [[3.0, 2.0, 1.0]]])
    >>> latent_attention(q, jnp.zeros((1, 2, 2)), latent, jnp.ones((2, 1, 2)), scale=1.0)[0, 0]
    Array([2., 2., 2.], dtype=float32)
    """
    T, N, S = *q.shape[-3:-1], latent.shape[-3]
    if mask is not None:
        check_mask(mask)
        mask.check(q.shape[:-3], N, T, S)
    logits = attention_logits(q, latent, bias, scale=scale) + attention_logits(turned, key, scale=scale)
    weights = masked_softmax(logits, None if mask is None else mask.materialize(T, S))
    return mix_weights(weights, latent, dtype=q.dtype)
