"""Cross-entropy as sums and counts, so that accumulation and any mesh agree.

Axes: B batch (any number of axes), V vocabulary, D model width.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped


def cross_entropy(
    logits: Float[Array, "*B V"],
    labels: Int[Array, "*B"],
    weights: Shaped[Array, "*B"] | None = None,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Sum the weighted cross-entropy of labels, in float32, without one-hot targets.

    Args:
        logits: unnormalised log-probabilities.
        labels: class ids. Outside [0, V) they give NaN, unless their weight is 0.
        weights: how much each label counts; None counts each once. Booleans do.
        label_smoothing: this much of the target goes evenly to all V classes, the true one included
            (Szegedy et al. 2016, https://arxiv.org/abs/1512.00567).
        z_loss: factor on the squared log-normaliser, which keeps it near 0 (Chowdhery et al. 2022,
            https://arxiv.org/abs/2204.02311, section 5).

    Returns:
        The sum of losses and the sum of weights; their ratio is the mean loss.

    >>> total, count = cross_entropy(jnp.zeros((3, 8)), jnp.array([1, 2, 0]), jnp.array([1, 1, 0]))
    >>> float(total / count) == float(jnp.log(8.0))
    True
    """
    if weights is None:
        weights = jnp.ones(labels.shape, jnp.float32)
    weights = weights.astype(jnp.float32)
    logits = logits.astype(jnp.float32)
    labels, fault = _screen(labels, weights, logits.shape[-1])
    norm = jax.nn.logsumexp(logits, axis=-1)
    target = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    losses = norm - (1 - label_smoothing) * target
    if label_smoothing:
        losses = losses - label_smoothing * jnp.mean(logits, axis=-1)
    if z_loss:
        losses = losses + z_loss * norm**2
    return jnp.sum((losses + fault) * weights), jnp.sum(weights)


def _screen(labels, weights, V):
    """Put 0 for labels outside the vocabulary, with a NaN to add to their loss where they count."""
    inside = (labels >= 0) & (labels < V)
    return jnp.where(inside, labels, 0), jnp.where(inside | (weights == 0), 0.0, jnp.nan)
