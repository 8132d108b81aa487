"""Logit filters: which tokens may be drawn. A filter keeps the shape and puts -inf where a token may not be.

Numbers may be arrays, so that new values need no new program; impossible ones are then let through. Of equal logits a
filter keeps all or none. Axes: *B batch, V vocabulary. Nucleus sampling: Holtzman et al. 2020,
https://arxiv.org/abs/1904.09751. Top-k: Fan et al. 2018, https://arxiv.org/abs/1805.04833.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flax_transformer.ops.logit_cutoff import Cutoff, keep_epsilon, keep_eta, keep_top_h
from flax_transformer.ops.top_k import largest

Number = float | Float[Array, ""]
Count = int | Int[Array, ""]


def scale_temperature(logits: Float[Array, "*B V"], temperature: Number) -> Float[Array, "*B V"]:
    """Divide logits by the temperature: below 1 sharpens the distribution, above 1 flattens it.

    >>> scale_temperature(jnp.array([1.0, 2.0]), 0.5).tolist()
    [2.0, 4.0]
    """
    if _known(temperature) and not temperature > 0:
        raise ValueError(f"temperature must be positive (greedy is the limit at 0), got {temperature}")
    # XLA turns a division by a constant into this product; so that an array gives the same bits, it is written out.
    return (logits * (1.0 / jnp.asarray(temperature, jnp.float32))).astype(logits.dtype)


def keep_top_k(
    logits: Float[Array, "*B V"], k: Count, *, p: Number = 1.0, most: int | None = None
) -> Float[Array, "*B V"]:
    """Keep the k largest logits of each row, and of these the nucleus of mass p; see `keep_top_p`.

    Whatever equals the smallest logit kept stays too, so that equal tokens are as probable. A k above the vocabulary
    size keeps everything.

    Args:
      most: a number known when compiling that k does not exceed, where k itself is not known then.

    >>> keep_top_k(jnp.array([1.0, 4.0, 2.0, 3.0]), 2).tolist()
    [-inf, 4.0, -inf, 3.0]
    """
    if most is None and not _known(k):
        raise ValueError("k must be known when compiling, or `most` must say what it does not exceed")
    if _known(k) and k < 1:
        raise ValueError(f"k must be at least 1, got k={k}")
    _check_mass(p)
    values = logits.astype(jnp.float32)
    best = largest(values, min(k if most is None else most, logits.shape[-1]))[0]
    inside = jnp.arange(best.shape[-1]) < k
    smallest = jnp.where(inside, best, jnp.inf).min(-1, keepdims=True)
    weight = jnp.exp(best - best[..., :1])
    # Tokens that equal the k-th, and are not among the k, have their share of the mass.
    equal = (values == smallest).sum(-1, keepdims=True) - (inside & (best == smallest)).sum(-1, keepdims=True)
    total = jnp.where(inside, weight, 0.0).sum(-1, keepdims=True) + equal * jnp.exp(smallest - best[..., :1])
    before = jnp.cumsum(weight, axis=-1) - weight
    stays = inside & ((before < p * total) | (jnp.asarray(p) == 1))
    return jnp.where(values < jnp.where(stays, best, jnp.inf).min(-1, keepdims=True), -jnp.inf, logits)


def keep_top_p(logits: Float[Array, "*B V"], p: Number) -> Float[Array, "*B V"]:
    """Keep the nucleus: the smallest set of most probable tokens whose probabilities add up to p or more.

    The most probable token always stays, and so does whatever equals the smallest logit kept.

    >>> jax.nn.softmax(keep_top_p(jnp.log(jnp.array([0.25, 0.5, 0.25, 0.0])), 0.4)).tolist()
    [0.0, 1.0, 0.0, 0.0]
    """
    _check_mass(p)

    def nucleus(x: Array) -> Array:
        values = x.astype(jnp.float32)
        return jnp.where(values < _boundary(values, jax.nn.softmax(values), p), -jnp.inf, x)

    return _unless_all(p, nucleus, logits)


def keep_min_p(logits: Float[Array, "*B V"], p: Number) -> Float[Array, "*B V"]:
    """Keep the tokens that are at least p times as probable as the most probable one (Nguyen et al. 2024).

    Source: https://arxiv.org/abs/2407.01082.

    >>> jnp.isfinite(keep_min_p(jnp.log(jnp.array([0.5, 0.25, 0.15, 0.1])), 0.4)).tolist()
    [True, True, False, False]
    """
    if _known(p) and not 0 <= p <= 1:
        raise ValueError(f"min_p must be between 0 and 1, got {p}")
    probability = jax.nn.softmax(logits.astype(jnp.float32))
    return jnp.where(probability < p * probability.max(-1, keepdims=True), -jnp.inf, logits)


def keep_typical(logits: Float[Array, "*B V"], p: Number) -> Float[Array, "*B V"]:
    """Keep the tokens whose surprise is nearest to the expected one, with mass p or more (Meister et al. 2023).

    Source: https://arxiv.org/abs/2202.00666.

    >>> jax.nn.softmax(keep_typical(jnp.log(jnp.array([0.6, 0.2, 0.1, 0.1])), 0.1)).tolist()
    [0.0, 1.0, 0.0, 0.0]
    """
    _check_mass(p)

    def typical(x: Array) -> Array:
        surprise = -jax.nn.log_softmax(x.astype(jnp.float32))
        probability = jnp.exp(-surprise)
        expected = jnp.where(probability > 0, probability * surprise, 0).sum(-1, keepdims=True)
        nearness = -jnp.abs(surprise - expected)
        return jnp.where(nearness < _boundary(nearness, probability, p), -jnp.inf, x)

    return _unless_all(p, typical, logits)


def filter_logits(
    logits: Float[Array, "*B V"],
    *,
    temperature: Number = 1.0,
    top_k: Count | None = None,
    top_p: Number = 1.0,
    min_p: Number | None = None,
    typical_p: Number = 1.0,
    cutoff: Cutoff | None = None,
    most: int | None = None,
) -> Float[Array, "*B V"]:
    """Apply temperature, top-H, top-k, the nucleus, min-p, typical-p, epsilon and eta, in Hugging Face's order.

    All of them may be arrays, so that new values need no new program, top-k with `most` beside it; see `keep_top_k`.

    >>> filter_logits(jnp.array([0.0, 1.0, 2.0]), temperature=0.5, top_k=2).tolist()
    [-inf, 2.0, 4.0]
    """
    cutoff = cutoff or Cutoff()
    logits = scale_temperature(logits, temperature)
    logits = logits if cutoff.top_h is None else keep_top_h(logits, cutoff.top_h)
    logits = keep_top_p(logits, top_p) if top_k is None else keep_top_k(logits, top_k, p=top_p, most=most)
    if min_p is not None:
        logits = keep_min_p(logits, min_p)
    logits = keep_typical(logits, typical_p)
    logits = logits if cutoff.epsilon is None else keep_epsilon(logits, cutoff.epsilon)
    return logits if cutoff.eta is None else keep_eta(logits, cutoff.eta)


def _known(number: Number | Count) -> bool:
    return not isinstance(number, jax.core.Tracer)


def _check_mass(p: Number) -> None:
    if _known(p) and not 0 < p <= 1:
        raise ValueError(f"p must be above 0 and at most 1, got p={p}")


def _unless_all(p: Number, keep: Callable[[Array], Array], logits: Array) -> Array:
    """Apply a filter, unless it keeps a mass of 1: everything."""
    if _known(p):
        return logits if p == 1 else keep(logits)
    return jax.lax.cond(p < 1, keep, lambda x: x, logits)


def _boundary(values: Float[Array, "*B V"], weight: Float[Array, "*B V"], mass: Number) -> Float[Array, "*B 1"]:
    """Find the largest value that has `mass` at it and above; NaN, below which nothing lies, where there is less.

    Bit by bit, in 32 sums over the axis, as floats are ordered like their bits: a fiftieth of the time of a sort.
    """
    sign = jnp.uint32(1 << 31)
    bits = jax.lax.bitcast_convert_type(values.astype(jnp.float32), jnp.uint32)
    order = jnp.where(bits < sign, bits | sign, ~bits)

    def add_bit(i: Array, found: Array) -> Array:
        larger = found | (sign >> i.astype(jnp.uint32))
        above = jnp.where(order >= larger, weight, 0.0).sum(-1, keepdims=True)
        return jnp.where(above >= mass, larger, found)

    found = jax.lax.fori_loop(0, 32, add_bit, jnp.zeros((*values.shape[:-1], 1), jnp.uint32))
    return jax.lax.bitcast_convert_type(jnp.where(found < sign, ~found, found ^ sign), jnp.float32)
