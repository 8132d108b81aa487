"""Which parts of an input a number depends on: gradients, integrated gradients, occlusion, Shapley values.

f is any pure function of an array that returns a scalar: `starting_at(g, "token_embedding")` makes one of a model that
reads tokens. Axes: G groups of features, R permutations.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

Either = Array | np.ndarray
Scalar = Callable[[Array], Array]


class Integrated(NamedTuple):
    """What integrated gradients give."""

    values: Float[Array, "..."]
    """For each feature."""
    error: Float[Array, ""]
    """How far their sum is from the difference of f between the input and the baseline, which it should be."""


def gradient_times_input(f: Scalar, x: Float[Either, "..."]) -> Float[Array, "..."]:
    """Return the gradient of f times its input, feature by feature (Shrikumar et al. 2016).

    >>> gradient_times_input(lambda x: jnp.sum(x**2), jnp.array([1.0, 2.0])).tolist()
    [2.0, 8.0]
    """
    x = jnp.asarray(x)
    return x * jax.grad(f)(x)


def integrated_gradients(
    f: Scalar, x: Float[Either, "..."], baseline: Float[Either, "..."] | float = 0.0, *, steps: int = 50, batch: int = 8
) -> Integrated:
    """Return integrated gradients along the straight line from a baseline (Sundararajan et al. 2017).

    The integral is by Gauss and Legendre's rule; the error tells whether its steps are enough.

    Args:
      baseline: broadcasts to x.
      steps: points of the line at which f is differentiated.
      batch: of them at a time.

    >>> found = integrated_gradients(lambda x: jnp.sum(x**3), jnp.array([1.0, 2.0]))
    >>> found.values.round(4).tolist(), bool(abs(found.error) < 1e-4)
    ([1.0, 8.0], True)
    """
    x = jnp.asarray(x)
    start = jnp.broadcast_to(jnp.asarray(baseline, x.dtype), x.shape)
    points, weights = np.polynomial.legendre.leggauss(steps)

    def part(point: tuple[Array, Array]) -> Array:
        alpha, weight = point
        return weight * jax.grad(f)(start + alpha * (x - start))

    table = jnp.asarray((1 + points) / 2, x.dtype), jnp.asarray(weights / 2, x.dtype)
    values = (x - start) * jax.lax.map(part, table, batch_size=batch).sum(0)
    return Integrated(values, values.sum() - (f(x) - f(start)))


def occlusion(
    f: Scalar, x: Float[Either, "..."], groups: Int[Either, "..."], baseline: Float[Either, "..."] | float = 0.0,
    *, count: int, batch: int = 16,
) -> Float[Array, "G"]:  # fmt: skip
    """Return how much f loses when the features of each group are those of a baseline (Zeiler & Fergus 2014).

    Args:
      groups: the number of each feature's group from 0 to G - 1, which broadcasts to x; others are in none.
      baseline: broadcasts to x.
      count: G.
      batch: groups at a time.

    >>> occlusion(lambda x: jnp.sum(x**2), jnp.array([1.0, 2.0, 3.0]), jnp.array([0, 0, 1]), count=2).tolist()
    [5.0, 9.0]
    """
    whole = f(jnp.asarray(x))
    value = _of_groups(f, x, groups, baseline)
    every = jnp.arange(count)
    return whole - jax.lax.map(lambda left_out: value(every != left_out), every, batch_size=batch)


def shapley_values(
    f: Scalar, x: Float[Either, "..."], groups: Int[Either, "..."], permutations: Int[Either, "R G"],
    baseline: Float[Either, "..."] | float = 0.0, *, batch: int = 16,
) -> Float[Array, "G"]:  # fmt: skip
    """Return what each group adds to f when it comes, on average over orders in which groups come (Castro et al. 2009).

    They sum to the difference of f between the input and the baseline; over all G! orders they are Shapley's values.

    Args:
      groups, baseline: as of `occlusion`.
      permutations: orders of the groups, such as `draw_permutations` gives.
      batch: evaluations of f at a time.

    >>> f = lambda x: x[0] * x[1] + x[2]
    >>> shapley_values(f, jnp.ones(3), jnp.arange(3), jnp.array([[0, 1, 2], [2, 1, 0]])).tolist()
    [0.5, 0.5, 1.0]
    """
    value, orders = _of_groups(f, x, groups, baseline), jnp.asarray(permutations)
    count = orders.shape[-1]
    turn = jnp.argsort(orders, axis=-1)  # when each group comes
    there = turn[:, None, :] < jnp.arange(count + 1)[:, None]
    after = jax.lax.map(value, there.reshape(-1, count), batch_size=batch).reshape(-1, count + 1)
    return jnp.take_along_axis(jnp.diff(after, axis=-1), turn, axis=-1).mean(0)


def draw_permutations(key: PRNGKeyArray, count: int, groups: int) -> Int[Array, "R G"]:
    """Draw orders of the groups, each and its reverse, which halves the variance of what is almost additive.

    >>> draw_permutations(jax.random.key(0), 4, 3).shape
    (4, 3)
    """
    drawn = jax.vmap(lambda k: jax.random.permutation(k, groups))(jax.random.split(key, -(-count // 2)))
    return jnp.concatenate([drawn, drawn[:, ::-1]])[:count]


def by_group(values: Float[Either, "..."], groups: Int[Either, "..."], count: int) -> Float[Array, "G"]:
    """Add up attributions of features by group.

    >>> by_group(jnp.array([1.0, 2.0, 3.0]), jnp.array([0, 0, 1]), 2).tolist()
    [3.0, 3.0]
    """
    values = jnp.asarray(values)
    which = jnp.broadcast_to(jnp.asarray(groups), values.shape)
    return jnp.zeros(count, values.dtype).at[which.ravel()].add(values.ravel(), mode="drop")


def agreement(attributions: Mapping[str, Float[Either, "G"]]) -> Float[np.ndarray, "_ _"]:
    """Return Spearman's rank correlation of every attribution with every other, in the order given.

    >>> agreement({"a": np.array([1.0, 2.0, 3.0]), "b": np.array([1.0, 5.0, 9.0])}).round(6).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    from scipy.stats import rankdata

    ranks = np.stack([rankdata(np.asarray(each, np.float64).ravel()) for each in attributions.values()])
    ranks = ranks - ranks.mean(-1, keepdims=True)
    spread = np.sqrt((ranks**2).sum(-1))
    spread[spread == 0] = np.inf  # all alike: no rank is above another
    return ranks @ ranks.T / np.outer(spread, spread)


def _of_groups(f: Scalar, x: Either, groups: Either, baseline: Either | float) -> Callable[[Array], Array]:
    """Return f of which groups are as they are, the others as the baseline."""
    x, which = jnp.asarray(x), jnp.asarray(groups)

    def value(there: Array) -> Array:
        kept = jnp.where((which >= 0) & (which < there.shape[0]), there[jnp.clip(which, 0, there.shape[0] - 1)], True)
        return f(jnp.where(kept, x, jnp.asarray(baseline, x.dtype)))

    return value
