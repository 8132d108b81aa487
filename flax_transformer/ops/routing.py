"""Sending tokens to a few of many experts: who goes where, with how much weight, and how even it is.

Axes: B rows, T positions, E experts, A experts that a token is sent to, Q places that an expert has for the tokens of a
row. Every row is routed by itself, so that a batch is its rows, and any mesh gives the same. A row is what GShard
(Lepikhin et al. 2020, https://arxiv.org/abs/2006.16668) calls a group.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.ops.wide import widen


def route(
    logits: Float[Array, "*B T E"], active: int, *, normalized: bool = True
) -> tuple[Int[Array, "*B T A"], Float[Array, "*B T A"]]:
    """Choose each token's experts, the likeliest first, and the weights of what they make of it.

    Args:
        logits: of the router.
        active: A, how many experts a token is sent to.
        normalized: whether the weights of a token add up to 1 (Mixtral, https://arxiv.org/abs/2401.04088), or are the
            probabilities themselves (Switch, Fedus et al. 2021, https://arxiv.org/abs/2101.03961).

    Raises:
        ValueError: more experts than there are, or none.

    >>> chosen, weights = route(jnp.log(jnp.array([[0.1, 0.6, 0.3]])), 2)
    >>> chosen.tolist(), [round(weight, 3) for weight in weights[0].tolist()]
    ([[1, 2]], [0.667, 0.333])
    """
    if not 1 <= active <= logits.shape[-1]:
        raise ValueError(f"a token is sent to 1 to E={logits.shape[-1]} experts, got {active}")
    probabilities = left = jax.nn.softmax(widen(logits), axis=-1)
    chosen = []
    for _ in range(active):  # `top_k` would gather the rows of all devices
        chosen.append(jnp.argmax(left, axis=-1))
        left = jnp.where(jax.nn.one_hot(chosen[-1], logits.shape[-1], dtype=bool), -1, left)
    found = jnp.stack(chosen, axis=-1)
    weights = jnp.einsum("...tae,...te->...ta", jax.nn.one_hot(found, logits.shape[-1]), probabilities)
    return found, weights / weights.sum(-1, keepdims=True) if normalized else weights


def places_of(T: int, E: int, active: int, capacity: float) -> int:
    """Count the places Q that an expert has for the tokens of a row: `capacity` times its even share, rounded up.

    >>> places_of(16, 8, 2, 1.25), places_of(1, 8, 2, 1.25), places_of(16, 2, 1, 9.0)
    (5, 1, 16)
    """
    return min(T, math.ceil(T * active / E * capacity))


def place(chosen: Int[Array, "*B T A"], E: int) -> Int[Array, "*B T A"]:
    """Give each token its place at each of its experts: first choices before second ones, then in the row's order.

    >>> place(jnp.array([[0, 1], [0, 1], [1, 0]]), 2)
    Array([[0, 1],
           [1, 2],
           [0, 2]], dtype=int32)
    """
    order = jnp.swapaxes(chosen, -1, -2)  # [*B A T]: all first choices, then all second ones
    at = jax.nn.one_hot(order.reshape(*order.shape[:-2], -1), E, dtype=jnp.int32)
    before = jnp.sum((jnp.cumsum(at, axis=-2) - 1) * at, axis=-1).reshape(order.shape)
    return jnp.swapaxes(before, -1, -2)


def combine(
    chosen: Int[Array, "*B T A"], weights: Float[Array, "*B T A"], E: int, places: Int[Array, "*B T A"], Q: int
) -> Float[Array, "*B T E Q"]:
    """Lay the weights out by expert and place; whom an expert has no place for has none there, and is dropped."""
    at, of = jax.nn.one_hot(places, Q, dtype=weights.dtype), jax.nn.one_hot(chosen, E, dtype=weights.dtype)
    return jnp.einsum("...tae,...taq->...teq", of * weights[..., None], at)


def dropped(places: Int[Array, "*B T A"], Q: int) -> Bool[Array, "*B T A"]:
    """Say which tokens come too late at which of their experts."""
    return places >= Q


def balance_loss(logits: Float[Array, "*B T E"], chosen: Int[Array, "*B T A"]) -> Float[Array, "*B"]:
    """Measure how unevenly each row is spread over the experts: A where it is even, up to E where one expert has all.

    E times the sum over experts of the share of tokens sent to it times its mean probability (Fedus et al. 2021, §2.2;
    with A above 1 each token counts A times, as in Mixtral's).

    >>> float(balance_loss(jnp.zeros((4, 2)), jnp.array([[0], [1], [0], [1]])))
    1.0
    """
    E = logits.shape[-1]
    probabilities = jax.nn.softmax(widen(logits), axis=-1)
    share = jax.nn.one_hot(chosen, E, dtype=probabilities.dtype).sum(-2).mean(-2)
    return E * jnp.sum(share * probabilities.mean(-2), axis=-1)


def router_z_loss(logits: Float[Array, "*B T E"]) -> Float[Array, "*B"]:
    """Give the mean squared log-normaliser of each row (Zoph et al. 2022, https://arxiv.org/abs/2202.08906, ST-MoE).

    >>> float(router_z_loss(jnp.zeros((3, 1))))
    0.0
    """
    return jnp.mean(jnp.square(jax.nn.logsumexp(widen(logits), axis=-1)), axis=-1)
