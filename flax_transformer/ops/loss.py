"""Cross-entropy as sums and counts, so that accumulation and any mesh agree.

Axes: B batch (any number of axes), V vocabulary, D model width.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from flax_transformer.ops.eager import reused
from flax_transformer.ops.table import by_device
from flax_transformer.parallel.explicit import implicit


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


@implicit("labels")
@reused
def chunked_cross_entropy(
    hidden: Float[Array, "*B D"],
    embedding: Float[Array, "*n V D"],
    labels: Int[Array, "*B"],
    weights: Shaped[Array, "*B"] | None = None,
    *,
    bias: Float[Array, "V"] | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    chunk: int = 512,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Compute `cross_entropy(hidden @ embedding.T + bias, …)` without ever holding the logits of all tokens.

    Logits exist for `chunk` tokens at a time, in the backward pass too: their gradient is taken while they are there,
    so nothing is computed twice. Under a mesh each device takes its own tokens, `chunk` at a time, and the gradients of
    the embedding are summed over devices once, at the end: of all its uses together where it is as `spread` makes it.

    >>> hidden, embedding, labels = jnp.ones((5, 2)), jnp.eye(3, 2), jnp.array([0, 1, 2, 0, 1])
    >>> full = cross_entropy(hidden @ embedding.T, labels)[0]
    >>> bool(jnp.allclose(chunked_cross_entropy(hidden, embedding, labels, chunk=2)[0], full))
    True
    """
    if chunk < 1:
        raise ValueError(f"a chunk holds at least one token, got {chunk}")
    weights = (jnp.ones(labels.shape) if weights is None else weights).astype(jnp.float32)

    def run(table, bias, labels, weights, hidden):
        total = _chunked((label_smoothing, z_loss, chunk), (table, bias), hidden, labels, weights)
        return total.reshape((1,) * labels.ndim)  # one for each device

    totals = by_device(run, labels.shape, embedding, bias, labels, weights, hidden, stages=True)
    return jnp.sum(totals), jnp.sum(weights)


def _cut(x: Array, chunk: int, rank: int) -> Array:
    """Cut tokens, the first `rank` axes of x, into chunks; what is over is filled up with zeros."""
    tail = x.shape[rank:]
    flat = x.reshape(-1, *tail)
    chunk = min(chunk, max(len(flat), 1))
    flat = jnp.pad(flat, [(0, -len(flat) % chunk)] + [(0, 0)] * len(tail))
    # Tokens of one chunk lie far apart, so a sharded batch axis is sharded within every chunk.
    return jnp.moveaxis(flat.reshape(chunk, -1, *tail), 0, 1)


def _chunk_loss(settings, output, hidden, labels, weights):
    label_smoothing, z_loss = settings
    embedding, bias = output
    logits = jnp.einsum("...d,vd->...v", hidden, embedding, preferred_element_type=jnp.float32)
    logits = logits if bias is None else logits + bias.astype(logits.dtype)
    return cross_entropy(logits, labels, weights, label_smoothing=label_smoothing, z_loss=z_loss)[0]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chunked(settings, output, hidden, labels, weights):
    def add(total, chunk):
        return total + _chunk_loss(settings[:2], output, *chunk), None

    chunks = [_cut(x, settings[2], labels.ndim) for x in (hidden, labels, weights)]
    return jax.lax.scan(add, jnp.float32(0), chunks)[0]


def _chunked_forward(settings, output, hidden, labels, weights):
    slope = jax.value_and_grad(partial(_chunk_loss, settings[:2]), (0, 1, 3))

    def add(carry, chunk):
        total, by_output = carry
        loss, (more, by_hidden, by_weights) = slope(output, *chunk)
        return (total + loss, jax.tree.map(jnp.add, by_output, more)), (by_hidden, by_weights)

    start = jnp.float32(0), jax.tree.map(lambda part: jnp.zeros(part.shape, jnp.float32), output)
    chunks = [_cut(x, settings[2], labels.ndim) for x in (hidden, labels, weights)]
    (total, by_output), cut = jax.lax.scan(add, start, chunks)
    by_output = jax.tree.map(lambda slope, part: slope.astype(part.dtype), by_output, output)
    return total, (by_output, *(_join(x, labels.shape) for x in cut))


def _join(x: Array, tokens: tuple[int, ...]) -> Array:
    """Undo `_cut`."""
    tail = x.shape[2:]
    return jnp.moveaxis(x, 0, 1).reshape(-1, *tail)[: math.prod(tokens)].reshape(*tokens, *tail)


def _chunked_backward(settings, slopes, pull):
    by_output, by_hidden, by_weights = jax.tree.map(lambda slope: slope * pull.astype(slope.dtype), slopes)
    return by_output, by_hidden, None, by_weights


_chunked.defvjp(_chunked_forward, _chunked_backward)


def _screen(labels, weights, V):
    """Put 0 for labels outside the vocabulary, with a NaN to add to their loss where they count."""
    inside = (labels >= 0) & (labels < V)
    return jnp.where(inside, labels, 0), jnp.where(inside | (weights == 0), 0.0, jnp.nan)
