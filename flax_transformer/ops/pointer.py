"""Pointer-generator networks (See et al. 2017, https://arxiv.org/abs/1704.04368): copy a token of the source, or
generate one of the vocabulary; coverage.

Source and target share a vocabulary of subwords, so that what is copied is in it, and needs no extension.
Axes: B batch (any number of axes), T target positions, S source positions, V vocabulary, D width.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from flax_transformer.ops.chunked_loss import cut_tokens
from flax_transformer.ops.embedding_table import by_device
from flax_transformer.ops.float32 import at_least_float32, product

TINY = 1e-20
"""Added to probabilities of copying before their logarithm: what is not in the source has none."""


def copy_probabilities(
    attention: Float[Array, "*B T S"], source: Int[Array, "*B S"], vocab: int
) -> Float[Array, "*B T V"]:
    """Sum the attention to each token of the source, over the vocabulary.

    >>> copy_probabilities(jnp.array([[0.5, 0.25, 0.25]]), jnp.array([2, 0, 2]), 4).tolist()
    [[0.25, 0.0, 0.75, 0.0]]
    """
    T, S = attention.shape[-2:]
    rows = attention.reshape(-1, T, S)
    found = jax.vmap(lambda weights, ids: jnp.zeros((T, vocab), weights.dtype).at[:, ids].add(weights, mode="drop"))(
        rows, source.reshape(-1, S)
    )
    return found.reshape(*attention.shape[:-1], vocab)


def copy_log_probability(
    attention: Float[Array, "*B T S"], source: Int[Array, "*B S"], labels: Int[Array, "*B T"]
) -> Float[Array, "*B T"]:
    """Compute the log-probability of each label under copying, without a distribution over the vocabulary."""
    same = source[..., None, :] == labels[..., None]
    return jnp.log(jnp.sum(jnp.where(same, attention, 0.0), axis=-1) + TINY)


def mix(gate: Float[Array, "*B T"], generated: Float[Array, "*C"], copied: Float[Array, "*C"]) -> Float[Array, "*C"]:
    """Compute log(p_gen · exp(generated) + (1 - p_gen) · exp(copied)), where p_gen is the sigmoid of the gate.

    Both are of one token for each gate, or of a vocabulary, on a last axis.
    """
    gate = gate.reshape(*gate.shape, *[1] * (generated.ndim - gate.ndim))
    return jnp.logaddexp(jax.nn.log_sigmoid(gate) + generated, jax.nn.log_sigmoid(-gate) + copied)


def pointer_cross_entropy(
    hidden: Float[Array, "*B D"],
    table: Float[Array, "*n N D"],
    labels: Int[Array, "*B"],
    weights: Shaped[Array, "*B"],
    gate: Float[Array, "*B"],
    copied: Float[Array, "*B"],
    *,
    vocab: int,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    chunk: int = 2048,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Sum the cross-entropy of labels under the mixture, without holding the logits of more than `chunk` tokens.

    Args:
      hidden, table: products of which are the generator's logits; of the table the first `vocab` rows. It may be one
        for each device, [n, N, D], as `nn.own_tables` has it.
      gate: logit of p_gen.
      copied: log-probability of the label under copying.
      label_smoothing: how much of the target goes evenly to all tokens, of the generator's distribution alone: what is
        not in the source cannot be copied.
      z_loss: factor on the squared log-normaliser of the generator.

    Returns:
      The sum, and that of the weights.
    """

    kind = at_least_float32(jnp.result_type(hidden, table))

    @jax.checkpoint
    def add(table: Array, total: Array, part: Any) -> tuple[Array, None]:
        hidden, labels, weights, gate, copied = part
        logits = product("td,vd->tv", hidden, table)[:, :vocab]
        norm = jax.nn.logsumexp(logits, axis=-1)
        label = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
        loss = -(1 - label_smoothing) * mix(gate, label - norm, copied)
        if label_smoothing:
            loss += label_smoothing * (norm - jnp.mean(logits, axis=-1))
        if z_loss:
            loss += z_loss * norm**2
        return total + jnp.sum(loss * weights), None

    def run(table: Array, _: None, *tokens: Array) -> Array:
        parts = [cut_tokens(x, chunk, labels.ndim) for x in tokens]
        total, _ = jax.lax.scan(partial(add, table), jnp.zeros((), kind), parts)
        return total.reshape((1,) * labels.ndim)  # one for each device

    tokens = hidden, labels, weights.astype(kind), gate, copied
    return jnp.sum(by_device(run, labels.shape, table, None, *tokens, stages=True)), jnp.sum(weights)


def coverage_loss(attention: Float[Array, "*B T S"], weights: Shaped[Array, "*B T"]) -> Float[Array, ""]:
    """Sum over target positions what each attends to again: Σ_i min(a_i, c_i), where c sums the attention before it.

    >>> float(coverage_loss(jnp.array([[0.5, 0.5], [1.0, 0.0]]), jnp.ones(2)))
    0.5
    """
    before = jnp.cumsum(attention, axis=-2) - attention
    return jnp.sum(jnp.minimum(attention, before).sum(-1) * weights)
