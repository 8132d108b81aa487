"""Sending tokens to a few of many experts: who goes where, with how much weight, and how even it is.

Axes: B rows, T positions, E experts, A experts that a token is sent to, Q places that an expert has for the tokens of a
row. Every row is routed by itself, so that a batch is its rows, and any mesh gives the same. A row is what GShard
(Lepikhin et al. 2020, https://arxiv.org/abs/2006.16668) calls a group.
"""

from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.ops.float32 import widen
from flax_transformer.ops.linear_map import linear_map
from flax_transformer.ops.mask import Mask


def slots_of(T: Any, E: int, active: int, capacity: float) -> Any:
    """Count the places Q that an expert has for the tokens of a row: `capacity` times its even share, rounded up.

    Args:
        T: how many tokens, or several such numbers.

    >>> slots_of(16, 8, 2, 1.25), slots_of(1, 8, 2, 1.25), slots_of(16, 2, 1, 9.0)
    (5, 1, 16)
    """
    found = np.minimum(T, np.ceil(np.asarray(T) * active / E * capacity)).astype(int)
    return found if found.ndim else int(found)


def place(chosen: Int[Array, "*B T A"], E: int, real: Bool[Array, "*B T"] | None = None) -> Int[Array, "*B T A"]:
    """Assign each token its slot at each of its experts: first choices before second ones, then in the row's order.

    Args:
        real: which tokens are no padding, which takes no places; None: all.

    >>> place(jnp.array([[0, 1], [0, 1], [1, 0]]), 2)
    Array([[0, 1],
           [1, 2],
           [0, 2]], dtype=int32)
    """
    order = jnp.swapaxes(chosen, -1, -2)  # [*B A T]: all first choices, then all second ones
    at = jax.nn.one_hot(order, E, dtype=jnp.int32)
    at = at if real is None else at * real[..., None, :, None]
    at = at.reshape(*order.shape[:-2], -1, E)
    before = jnp.sum((jnp.cumsum(at, axis=-2) - 1) * at, axis=-1).reshape(order.shape)
    return jnp.swapaxes(before, -1, -2)


def seats_of(
    chosen: Int[Array, "*B T A"], E: int, active: int, capacity: float, real: Bool[Array, "*B T"] | None = None
) -> tuple[Int[Array, "*B T A"], int]:
    """Number the places of all experts, Q of each, and give each token those that it has; E · Q is none.

    What finds no place is dropped. A row with padding has as many places as the row without it would have.

    >>> seats, Q = seats_of(jnp.array([[0], [0], [1]]), 2, 1, 1.0)
    >>> seats.ravel().tolist(), Q
    ([0, 1, 2], 2)
    """
    T = chosen.shape[-2]
    Q, slots = slots_of(T, E, active, capacity), place(chosen, E, real)
    if real is None:
        return jnp.where(slots < Q, chosen * Q + slots, E * Q), Q
    most = jnp.asarray(slots_of(np.arange(T + 1), E, active, capacity), jnp.int32)[real.sum(-1)]
    return jnp.where((slots < most[..., None, None]) & real[..., None], chosen * Q + slots, E * Q), Q


def visitors(seats: Int[Array, "*B V"], count: int) -> Int[Array, "*B J"]:
    """Return which of V visits has each of so many seats; V where it is empty.

    >>> visitors(jnp.array([2, 0, 3]), 3).tolist()
    [1, 3, 0]
    """
    V = seats.shape[-1]

    def row(seats: Int[Array, "V"]) -> Int[Array, "J"]:
        return jnp.full(count, V, jnp.int32).at[seats].set(jnp.arange(V, dtype=jnp.int32), mode="drop")

    for _ in seats.shape[:-1]:
        row = jax.vmap(row)
    return row(seats)


def send(x: Float[Array, "*B I D"], taken: Int[Array, "*B J"], back: Int[Array, "*B V"]) -> Float[Array, "*B J D"]:
    """Return row `taken` of x for each of J, zeros where there is no such row; x's gradient is made so, too.

    Args:
        taken: numbers of V visits, of which each row of x makes V / I, one after the other.
        back: which of the J each visit is; J where it is none.
    """
    return linear_map(_taken, _returned, (taken, back), x, each=back.shape[-1] // x.shape[-2])


def _taken(given: tuple[Array, Array], x: Array, *, each: int) -> Array:
    return _pick(x, given[0] // each)


def _returned(given: tuple[Array, Array], y: Array, *, each: int) -> Array:
    found = _pick(y, given[1])
    return found.reshape(*found.shape[:-2], -1, each, found.shape[-1]).sum(-2)


def _pick(x: Array, index: Array) -> Array:
    return jnp.take_along_axis(x, index[..., None], axis=-2, mode="fill", fill_value=0)


def balance_loss(
    logits: Float[Array, "*B T E"], chosen: Int[Array, "*B T A"], real: Bool[Array, "*B T"] | None = None
) -> Float[Array, "*B"]:
    """Measure how unevenly each row is spread over the experts: A where it is even, up to E where one expert has all.

    E times the sum over experts of the share of tokens sent to it times its mean probability (Fedus et al. 2021, §2.2;
    with A above 1 each token counts A times, as in Mixtral's).

    Args:
        real: which tokens are no padding, of which nothing counts; None: all.

    >>> float(balance_loss(jnp.zeros((4, 2)), jnp.array([[0], [1], [0], [1]])))
    1.0
    """
    E = logits.shape[-1]
    probabilities = jax.nn.softmax(widen(logits), axis=-1)
    share = over_tokens(jax.nn.one_hot(chosen, E, dtype=probabilities.dtype).sum(-2), real)
    return E * jnp.sum(share * over_tokens(probabilities, real), axis=-1)


def router_z_loss(logits: Float[Array, "*B T E"], real: Bool[Array, "*B T"] | None = None) -> Float[Array, "*B"]:
    """Return the mean squared log-normaliser of each row (Zoph et al. 2022, https://arxiv.org/abs/2202.08906, ST-MoE).

    Args:
        real: which tokens are no padding; None: all.

    >>> float(router_z_loss(jnp.zeros((3, 1))))
    0.0
    """
    squares = jnp.square(jax.nn.logsumexp(widen(logits), axis=-1, keepdims=True))
    return over_tokens(squares, real)[..., 0]


def over_tokens(x: Float[Array, "*B T E"], real: Bool[Array, "*B T"] | None) -> Float[Array, "*B E"]:
    """Average over the tokens that are real; 0 where none is."""
    if real is None:
        return x.mean(-2)
    return jnp.where(real[..., None], x, 0).sum(-2) / jnp.maximum(real.sum(-1), 1).astype(x.dtype)[..., None]


def real_positions(mask: Mask | None, T: int) -> Bool[Array, "*B T"] | None:
    """Return which of T positions are no padding: those that a mask of self-attention hides from nobody; None: all are.

    >>> real_positions(Mask(causal=True, lengths=jnp.array([1, 2])), 2).astype(int)
    Array([[1, 0],
           [1, 1]], dtype=int32)
    """
    found = []
    for part in (Mask(),) if mask is None else mask.parts:
        shown = [] if part.lengths is None else [jnp.arange(T) < part.lengths[..., None]]
        if part.dense is not None:
            seen = part.dense.any(axis=tuple(range(max(-3, -part.dense.ndim), -1)))
            shown.append(jnp.broadcast_to(seen, (*seen.shape[:-1], T)))
        if not shown:
            return None
        found.append(reduce(jnp.logical_and, shown))
    return reduce(jnp.logical_or, found)
