"""Means over batches that are taken in parts: sums and counts are added apart, and divided once in the end.

What an objective reports is a sum, divided by its `count`; a `Mean`, divided by a count of its own; or a tuple of
`Mean`s, which is the sum of their means.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Mean(NamedTuple):
    """A sum over a batch, and what it is divided by once all parts are added; the mean of nothing is 0."""

    total: Any
    count: Any

    def scaled(self, factor: Any) -> "Mean":
        """Return the mean times a factor."""
        return Mean(factor * self.total, self.count)

    def value(self) -> jax.Array:
        """Return the mean; its count is a constant to `jax.grad`."""
        return self.total * reciprocal(self.count)


def reciprocal(count: Any) -> jax.Array:
    """Return 1 / count, and 1 where nothing is counted."""
    return 1.0 / _divisor(count)


def _divisor(count: Any) -> jax.Array:
    count = jax.lax.stop_gradient(count)
    return jnp.where(count > 0, count, 1)


def terms_of(value: Any, count: Any) -> tuple[Mean, ...]:
    """Return what an objective reports as means to be added, a plain sum with the `count` that it reports."""
    if isinstance(value, Mean):
        return (value,)
    return value if isinstance(value, tuple) else (Mean(value, count),)


def means(sums: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Divide what an objective reports, `count` among it, which stays as it is."""
    count = sums["count"]

    def divided(value):
        return sum(each.value() for each in terms_of(value, count))

    return {name: value if name == "count" else divided(value) for name, value in sums.items()}


def summed(terms: tuple[Mean, ...], /, count: Any, **metrics: Any) -> tuple[jax.Array, dict[str, Any]]:
    """Return what an objective gives whose terms have counts of their own.

    Args:
      terms: what is minimised is the sum of their means.
      count: what is reported as `count`, and divides those metrics that are sums.

    Returns:
      The loss of this batch, times the count (1 where nothing is counted), for those who divide by it; and the metrics,
      among them the terms as `loss`, by which batches are added that are taken in parts.
    """
    total = _divisor(count) * sum(each.value() for each in terms)
    return total, {"count": count, "loss": terms, **metrics}


def with_term(loss: Any, metrics: Mapping[str, Any], more: Mean) -> tuple[Any, dict[str, Any]]:
    """Add a term to what an objective gives: to its sum if it has one count, which must then be that of the term."""
    if not isinstance(metrics.get("loss"), tuple):
        return loss + more.total, dict(metrics)
    rest = {name: value for name, value in metrics.items() if name not in ("loss", "count")}
    return summed((*metrics["loss"], more), metrics["count"], **rest)
