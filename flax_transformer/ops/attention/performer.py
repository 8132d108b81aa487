"""Softmax attention by random features, in linear time: FAVOR+ (Choromanski et al. 2021,
https://arxiv.org/abs/2009.14794).

exp(q · k) is the mean, over normal vectors w, of exp(w · q − |q|²/2) exp(w · k − |k|²/2); features are above 0, and
orthogonal vectors make the error smaller (Theorem 2). Sums over keys are those of `ops.linear`.

Axes as in `attention`; F features of a head.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.ops.attention.call import Call
from flax_transformer.ops.attention.function import AttentionFunction
from flax_transformer.ops.attention.linear import LOWEST, mix_features
from flax_transformer.ops.float32 import widen

EPSILON = 1e-12
"""Beside features of which the largest is 1: too small to be seen but where there is nothing else."""


def orthogonal_features(key: PRNGKeyArray, features: int, width: int) -> Float[Array, "F H"]:
    """Draw normal vectors of which every `width` are orthogonal to each other, with the lengths of independent ones.

    >>> w = orthogonal_features(jax.random.key(0), 4, 2)
    >>> bool(jnp.abs(w[0] @ w[1]) < 1e-5), bool(jnp.abs(w[2] @ w[3]) < 1e-5)
    (True, True)
    """
    turn, length = jax.random.split(key)
    blocks = -(-features // width)
    turned, upper = jnp.linalg.qr(jax.random.normal(turn, (blocks, width, width), jnp.float32))
    # The signs that a decomposition gives its vectors are not random: with these they are.
    turned = turned * jnp.sign(jnp.diagonal(upper, axis1=-2, axis2=-1))[..., None, :]
    directions = jnp.swapaxes(turned, -1, -2).reshape(blocks * width, width)[:features]
    others = jax.random.normal(length, (features, width), jnp.float32)
    return directions * jnp.linalg.norm(others, axis=-1, keepdims=True)


def positive_features(
    x: Float[Array, "*B T N H"], vectors: Float[Array, "F H"]
) -> tuple[Float[Array, "*B T N F"], Float[Array, "*B T N"]]:
    """Return exp(w · x − |x|²/2) as features of which the largest is 1, and the logarithm of what that was.

    Each position has a scale of its own, so that none is lost beside a larger one. A small number is added to all, as
    in the paper's code, so that a query and a key always have something in common.
    """
    x = widen(x)
    powers = jnp.einsum("...h,fh->...f", x, vectors.astype(x.dtype)) - jnp.sum(x**2, axis=-1, keepdims=True) / 2
    powers = jnp.maximum(powers, LOWEST / 2)
    scales = jax.lax.stop_gradient(powers.max(axis=-1))
    return jnp.exp(powers - scales[..., None]) + EPSILON, scales


@frozen
class PerformerAttention(AttentionFunction):
    """An unbiased estimate of softmax attention's numerators and denominators; the error falls with more features.

    >>> q = jax.random.normal(jax.random.key(0), (5, 1, 4)) / 2
    >>> from flax_transformer.ops import attention
    >>> error = lambda features: jnp.abs(PerformerAttention(features=features)(q, q, q) - attention(q, q, q)).mean()
    >>> bool(error(4096) < 0.02 < error(4))
    True
    """

    features: int = 256
    """F, random features of a head; the paper takes width · log(width)."""
    seed: int = 0
    """Of the random vectors, the same ones for all heads and layers and at every call."""

    name = "performer"
    supports = frozenset({"causal", "lengths", "offset", "cross", "scale"})

    def __post_init__(self):
        if self.features < 1:
            raise ValueError(f"features must be at least 1, got {self.features}")

    def run(self, call: Call) -> Float[Array, "*B T N H"]:
        """Mix by sums over keys."""
        v = call.v
        vectors = orthogonal_features(jax.random.key(self.seed), self.features, call.q.shape[-1])
        q, k = (widen(x) * call.resolved_scale**0.5 for x in (call.q, call.k))
        # What a query's features are multiplied by, its sum of weights takes out again.
        queries, (keys, scales) = positive_features(q, vectors)[0], positive_features(k, vectors)
        return mix_features(queries, keys, widen(v), call.mask, scales).astype(v.dtype)
