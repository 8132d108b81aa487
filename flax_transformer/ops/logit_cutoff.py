"""Logit filters by a least probability or by entropy: which tokens may be drawn, beside those of `ops.logit_filter`.

Epsilon and eta sampling: Hewitt et al. 2022, https://arxiv.org/abs/2210.15191. Top-H: Potraghloo et al. 2025,
https://arxiv.org/abs/2509.02510. Each keeps the most probable token. Axes: *B batch, V vocabulary.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flax_transformer.ops.top_k import largest

Number = float | Float[Array, ""]

LARGEST = 100
"""Tokens whose entropy top-H looks at."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cutoff:
    """Filters by a least probability or by entropy; None leaves one out. A pytree."""

    epsilon: Number | None = None
    """See `keep_epsilon`; 0 keeps all."""
    eta: Number | None = None
    """See `keep_eta`; 0 keeps all."""
    top_h: Number | None = None
    """See `keep_top_h`."""

    def __post_init__(self) -> None:
        for name in ("epsilon", "eta", "top_h"):
            value = getattr(self, name)
            if isinstance(value, int | float) and not 0 <= value <= 1:
                raise ValueError(f"{name} must be between 0 and 1, or None, got {value}")


def keep_epsilon(logits: Float[Array, "*B V"], epsilon: Number) -> Float[Array, "*B V"]:
    """Keep the tokens that have at least the probability epsilon.

    >>> keep_epsilon(jnp.log(jnp.array([0.5, 0.375, 0.125])), 0.25)[2].item()
    -inf
    """
    return _above(logits, jax.nn.softmax(logits.astype(jnp.float32)), epsilon)


def keep_eta(logits: Float[Array, "*B V"], epsilon: Number) -> Float[Array, "*B V"]:
    """Keep the tokens of at least the probability min(epsilon, sqrt(epsilon) exp(-H)), of H the entropy of them all.

    >>> jnp.isfinite(keep_eta(jnp.log(jnp.array([0.5, 0.375, 0.125])), 0.25)).tolist()
    [True, True, False]
    """
    logprob = jax.nn.log_softmax(logits.astype(jnp.float32))
    probability = jnp.exp(logprob)
    entropy = -jnp.where(probability > 0, probability * logprob, 0.0).sum(-1, keepdims=True)
    return _above(logits, probability, jnp.minimum(epsilon, jnp.sqrt(epsilon) * jnp.exp(-entropy)))


def keep_top_h(logits: Float[Array, "*B V"], share: Number) -> Float[Array, "*B V"]:
    """Keep the most probable tokens that have together at most that share of the entropy of the 100 most probable.

    >>> jnp.isfinite(keep_top_h(jnp.log(jnp.array([0.5, 0.25, 0.25])), 0.7)).tolist()
    [True, True, True]
    """
    values = logits.astype(jnp.float32)
    best = largest(values, min(LARGEST, logits.shape[-1]))[0]
    logprob = jax.nn.log_softmax(best)
    terms = -jnp.where(jnp.isfinite(logprob), jnp.exp(logprob) * logprob, 0.0)
    stays = (jnp.cumsum(terms, axis=-1) <= share * terms.sum(-1, keepdims=True)).at[..., 0].set(True)
    smallest = jnp.where(stays, best, jnp.inf).min(-1, keepdims=True)
    return jnp.where(values < smallest, -jnp.inf, logits)


def _above(logits: Array, probability: Array, least: Array | Number) -> Array:
    return jnp.where(probability < jnp.minimum(least, probability.max(-1, keepdims=True)), -jnp.inf, logits)
