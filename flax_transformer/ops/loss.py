"""Cross-entropy as sums and counts, so that accumulation and any mesh agree.

Axes: B batch (any number of axes), V vocabulary.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from flax_transformer.ops.float32 import widen


def cross_entropy(
    logits: Float[Array, "*B V"],
    labels: Int[Array, "*B"],
    weights: Shaped[Array, "*B"] | None = None,
    *,
    vocab: int | None = None,
    label_smoothing: float | int = 0.0,
    z_loss: float | int = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Sum the weighted cross-entropy of labels, in float32 or more, without one-hot targets.

    Args:
        logits: unnormalised log-probabilities.
        labels: class ids. Outside [0, V) they give NaN, unless their weight is 0.
        weights: how much each label counts; None counts each once. Booleans do.
        vocab: how many of the logits are of classes, where those after them only fill up a table; None: all.
        label_smoothing: this much of the target goes evenly to all V classes, the true one included
            (Szegedy et al. 2016, https://arxiv.org/abs/1512.00567).
        z_loss: factor on the squared log-normaliser, which keeps it near 0 (Chowdhery et al. 2022,
            https://arxiv.org/abs/2204.02311, section 5).

    Returns:
        The sum of losses and the sum of weights; their ratio is the mean loss.

    Raises:
        ValueError: options that make no loss.

    >>> total, count = cross_entropy(jnp.zeros((3, 8)), jnp.array([1, 2, 0]), jnp.array([1, 1, 0]))
    >>> float(total / count) == float(jnp.log(8.0))
    True
    """
    V = check_vocab(logits.shape[-1], vocab)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1], got {label_smoothing}")
    if not 0 <= z_loss < math.inf:
        raise ValueError(f"z_loss must not be negative, got {z_loss}")
    logits = widen(logits[..., :V])
    weights = weights_of(weights, labels, logits.dtype)
    labels, fault = _screen(labels, weights, V)
    norm = jax.nn.logsumexp(logits, axis=-1)
    target = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    losses = norm - (1 - label_smoothing) * target
    if label_smoothing:
        losses = losses - label_smoothing * jnp.mean(logits, axis=-1)
    if z_loss:
        losses = losses + z_loss * norm**2
    return jnp.sum((losses + fault) * weights), jnp.sum(weights)


def soft_cross_entropy(
    logits: Float[Array, "*B V"],
    labels: Float[Array, "*B V"],
    weights: Shaped[Array, "*B"] | None = None,
    *,
    label_smoothing: float | int = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Sum the weighted cross-entropy of distributions over classes, as ``cross_entropy`` does for single ones.

    >>> labels, hard = jnp.array([[0.0, 1.0, 0.0]]), jnp.array([1])
    >>> logits = jnp.array([[1.0, 2.0, 3.0]])
    >>> bool(soft_cross_entropy(logits, labels)[0] == cross_entropy(logits, hard)[0])
    True
    """
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1], got {label_smoothing}")
    logits = widen(logits)
    labels = (1 - label_smoothing) * labels.astype(logits.dtype) + label_smoothing / logits.shape[-1]
    weights = jnp.ones(labels.shape[:-1], logits.dtype) if weights is None else weights.astype(logits.dtype)
    losses = jax.nn.logsumexp(logits, axis=-1) * labels.sum(-1) - jnp.sum(labels * logits, axis=-1)
    return jnp.sum(losses * weights), jnp.sum(weights)


def check_vocab(rows: int, vocab: int | None) -> int:
    """Return the size of a vocabulary that a table of so many rows holds."""
    if vocab is not None and not 0 < vocab <= rows:
        raise ValueError(f"vocab must be between 1 and the rows of the table, got {vocab} of {rows}")
    return rows if vocab is None else vocab


def weights_of(weights, labels, dtype):
    """Return the weights of labels in a float type, 1 each where there are none."""
    return jnp.ones(labels.shape, dtype) if weights is None else weights.astype(dtype)


def _screen(labels, weights, V):
    """Put 0 for labels outside the vocabulary, with a NaN to add to their loss where they count."""
    inside = (labels >= 0) & (labels < V)
    return jnp.where(inside, labels, 0), jnp.where(inside | (weights == 0), 0.0, jnp.nan)
