"""Cross-entropy of an output layer that never holds the logits of all tokens.

Axes: B batch (any number of axes), V vocabulary, D model width; within chunks t tokens.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float, Int, Shaped

from flax_transformer.ops.attention.capped import soft_cap
from flax_transformer.ops.eager_call import reused
from flax_transformer.ops.embedding_table import by_device
from flax_transformer.ops.float32 import at_least_float32, product, widen
from flax_transformer.ops.linear_map import in_one_piece
from flax_transformer.ops.loss import check_vocab, cross_entropy, weights_of
from flax_transformer.parallel.explicit import implicit


def chunked_cross_entropy(
    hidden: Float[Array, "*B D"],
    embedding: Float[Array, "*n V D"],
    labels: Int[Array, "*B"],
    weights: Shaped[Array, "*B"] | None = None,
    *,
    bias: Float[Array, "E"] | None = None,
    chunk: int = 512,
    **options: Any,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Compute `cross_entropy(hidden @ embedding.T + bias, …)` without ever holding the logits of all tokens.

    Logits exist for `chunk` tokens at a time, in the backward pass too: their gradient is taken while they are there,
    so nothing is computed twice. Under a mesh each device takes its own tokens, `chunk` at a time, and the gradients of
    the embedding are summed over devices once, at the end: of all its uses together where it is as `spread` makes it.

    Args:
        bias: of the vocabulary's E logits alone, where the table has more rows.
        options: `vocab`, `label_smoothing` and `z_loss` of `cross_entropy`; `cap` of `soft_cap`, on logits.

    >>> hidden, embedding, labels = jnp.ones((5, 2)), jnp.eye(3, 2), jnp.array([0, 1, 2, 0, 1])
    >>> full = cross_entropy(hidden @ embedding.T, labels)[0]
    >>> bool(jnp.allclose(chunked_cross_entropy(hidden, embedding, labels, chunk=2)[0], full))
    True
    """
    return chunked_scores(hidden, embedding, labels, weights, bias=bias, chunk=chunk, **options)[:2]


@implicit("labels")
@reused
def chunked_scores(
    hidden: Float[Array, "*B D"],
    embedding: Float[Array, "*n V D"],
    labels: Int[Array, "*B"],
    weights: Shaped[Array, "*B"] | None = None,
    *,
    bias: Float[Array, "E"] | None = None,
    chunk: int = 512,
    **options: Any,
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """Compute what `chunked_cross_entropy` does and, as a third sum, the weights of labels with the largest logit.

    >>> hidden, embedding, labels = jnp.eye(3, 2), jnp.eye(3, 2), jnp.array([0, 0, 2])
    >>> float(chunked_scores(hidden, embedding, labels)[2])
    1.0
    """
    if chunk < 1:
        raise ValueError(f"a chunk holds at least one token, got {chunk}")
    vocab = options.pop("vocab", None)
    check_vocab(embedding.shape[-2], vocab)
    weights = weights_of(weights, labels, at_least_float32(jnp.result_type(hidden, embedding)))

    def run(table, bias, labels, weights, hidden):
        settings = chunk, vocab, tuple(options.items())
        sums = _chunked(settings, (table, bias), hidden, labels, weights)
        return tuple(each.reshape((1,) * labels.ndim) for each in sums)  # one for each device

    totals, right = by_device(run, labels.shape, embedding, bias, labels, weights, hidden, stages=True)
    return jnp.sum(totals), jnp.sum(weights), jnp.sum(right)


def cut_tokens(x: Array, chunk: int, rank: int) -> Array:
    """Cut tokens, the first `rank` axes of x, into chunks; what is over is filled up with zeros."""
    tail = x.shape[rank:]
    flat = x.reshape(-1, *tail)
    chunk = min(chunk, max(len(flat), 1))
    flat = jnp.pad(flat, [(0, -len(flat) % chunk)] + [(0, 0)] * len(tail))
    # Tokens of one chunk lie far apart, so a sharded batch axis is sharded within every chunk.
    return jnp.moveaxis(flat.reshape(chunk, -1, *tail), 0, 1)


def _logits(output, hidden, vocab):
    embedding, bias = output
    logits = product("...d,vd->...v", hidden, embedding)[..., :vocab]
    return logits if bias is None else logits + bias.astype(logits.dtype)


def _score(logits, labels, weights, options):
    """Return the loss of a chunk, and the weights of right guesses."""
    options = dict(options)
    logits = soft_cap(logits, options.pop("cap", None))
    fixed = jax.lax.stop_gradient(logits)
    # `argmax` in parts that XLA drops where nobody asks; itself, it would merge it with the maximum of the loss.
    ids = jax.lax.broadcasted_iota(jnp.int32, fixed.shape, fixed.ndim - 1)
    best = jnp.min(jnp.where(fixed == fixed.max(axis=-1, keepdims=True), ids, fixed.shape[-1]), axis=-1)
    right = jnp.sum(jnp.where(best == labels, jax.lax.stop_gradient(weights), 0))
    return cross_entropy(logits, labels, weights, **options)[0], right


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _chunked(settings, output, hidden, labels, weights):
    chunk, vocab, options = settings

    def add(sums, cut):
        hidden, *rest = cut
        return jax.tree.map(jnp.add, sums, _score(_logits(output, hidden, vocab), *rest, options)), None

    zero = jnp.zeros((), weights.dtype)
    return jax.lax.scan(add, (zero, zero), [cut_tokens(x, chunk, labels.ndim) for x in (hidden, labels, weights)])[0]


@partial(_chunked.defjvp, symbolic_zeros=True)
def _derive(settings, given, changes):
    """Take the gradient where the loss is: its products with the changes are what differentiating costs later."""
    sums, by = in_one_piece(_sums_and_gradients, given, settings=settings)
    moved = zip(by, (*changes[0], changes[1], changes[3]), strict=True)
    # In the type of what changed, which is how long they are kept.
    terms = [
        jnp.sum(widen(slope.astype(change.dtype)) * widen(change))
        for slope, change in moved
        if change is not None and not isinstance(change, SymbolicZero)
    ]
    zero = jnp.zeros_like(sums[0])
    return sums, (sum(terms, zero), zero)


def _sums_and_gradients(given, *, settings):
    (chunk, vocab, options), (output, hidden, labels, weights) = settings, given
    embedding, bias = output
    slope = jax.value_and_grad(partial(_score, options=options), (0, 2), has_aux=True)

    def add(carry, cut):
        sums, by_embedding, by_bias = carry
        hidden, *rest = cut
        more, (by_logits, by_weights) = slope(_logits(output, hidden, vocab), *rest)
        by_bias = None if bias is None else by_bias + jnp.sum(by_logits, axis=0)
        # Rounded like the operands: products of short floats with float32 would be products of float32.
        by_logits = jnp.pad(by_logits, ((0, 0), (0, len(embedding) - by_logits.shape[-1]))).astype(embedding.dtype)
        by_hidden = product("...v,vd->...d", by_logits, embedding).astype(hidden.dtype)
        by_embedding += product("tv,td->vd", by_logits.astype(hidden.dtype), hidden)
        return (jax.tree.map(jnp.add, sums, more), by_embedding, by_bias), (by_hidden, by_weights)

    def zeros(x):
        return None if x is None else jnp.zeros(x.shape, weights.dtype)

    start = (zeros(weights[:0].sum()),) * 2, zeros(embedding), zeros(bias)
    cuts = [cut_tokens(x, chunk, labels.ndim) for x in (hidden, labels, weights)]
    (sums, *by_output), cut = jax.lax.scan(add, start, cuts)
    return sums, (*by_output, *(_join(x, labels.shape) for x in cut))


def _join(x: Array, tokens: tuple[int, ...]) -> Array:
    """Undo `_cut`."""
    tail = x.shape[2:]
    return jnp.moveaxis(x, 0, 1).reshape(-1, *tail)[: math.prod(tokens)].reshape(*tokens, *tail)
