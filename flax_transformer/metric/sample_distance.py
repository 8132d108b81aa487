"""How far samples of a generative model are from real data, by features of both.

Features are those of a network that somebody names: distances by different networks do not compare.

Axes: N real rows, M generated rows, D width of features.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from flax_transformer.metric.finite import check_finite

ROWS = 1024
"""Rows whose distances to all others are computed at once."""


class KernelDistance(NamedTuple):
    """The kernel distance of several random subsets."""

    mean: float
    """Unbiased, so that it may be below 0."""
    std: float
    """Standard deviation over the subsets."""


class PrecisionRecall(NamedTuple):
    """Two sides of how samples differ from real data, each between 0 and 1."""

    precision: float
    """How many samples lie on the manifold of real data: fidelity."""
    recall: float
    """How many real rows lie on the manifold of samples: coverage."""


def frechet_distance(real: Float[np.ndarray, "N D"], generated: Float[np.ndarray, "M D"]) -> float:
    """Compute the Fréchet distance of two Gaussians fitted to features (Heusel et al. 2017, FID).

    |μ₁ - μ₂|² + Tr(Σ₁ + Σ₂ - 2 (Σ₁ Σ₂)^½), with the covariances of N - 1 and M - 1, in float64. The trace of the root
    is that of (Σ₁^½ Σ₂ Σ₁^½)^½, which is symmetric, so that covariances without full rank need no offset. It is biased
    by the number of rows: only distances of equally many compare.

    Raises:
      ValueError: fewer than two rows, different widths, or numbers that are not finite.

    >>> frechet_distance(np.array([[0.0], [2.0]]), np.array([[3.0], [5.0]]))
    9.0
    """
    real, generated = _checked(real, generated, least=2)
    difference = real.mean(axis=0) - generated.mean(axis=0)
    one, two = (np.atleast_2d(np.cov(each, rowvar=False)) for each in (real, generated))
    values, vectors = np.linalg.eigh(one)
    root = vectors * np.sqrt(np.maximum(values, 0)) @ vectors.T
    product = np.linalg.eigvalsh(root @ two @ root)
    return float(difference @ difference + np.trace(one) + np.trace(two) - 2 * np.sqrt(np.maximum(product, 0)).sum())


def kernel_distance(
    real: Float[np.ndarray, "N D"],
    generated: Float[np.ndarray, "M D"],
    *,
    subsets: int = 100,
    size: int = 1000,
    seed: int = 0,
) -> KernelDistance:
    """Estimate the squared maximum mean discrepancy by the kernel (x·y / D + 1)³ (Bińkowski et al. 2018, KID).

    Args:
      subsets: how many pairs of random subsets are compared.
      size: rows of each, without repetition; at most as many as there are.
      seed: of the draw.

    Raises:
      ValueError: no subsets, fewer than two rows, different widths, or numbers that are not finite.
    """
    real, generated = _checked(real, generated, least=2)
    if subsets < 1 or size < 2:
        raise ValueError(f"subsets must be at least 1 and their size at least 2, got {subsets} and {size}")
    draw, size = np.random.default_rng(seed), min(size, len(real), len(generated))
    found = [
        squared_mmd(*(each[draw.choice(len(each), size, replace=False)] for each in (real, generated)))
        for _ in range(subsets)
    ]
    return KernelDistance(float(np.mean(found)), float(np.std(found)))


def squared_mmd(real: Float[np.ndarray, "N D"], generated: Float[np.ndarray, "M D"]) -> float:
    """Compute the unbiased squared maximum mean discrepancy of two sets by the kernel (x·y / D + 1)³."""
    real, generated = _checked(real, generated, least=2)

    def kernel(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (x @ y.T / x.shape[1] + 1) ** 3

    def within(x: np.ndarray) -> float:
        values = kernel(x, x)
        return (values.sum() - np.trace(values)) / (len(x) * (len(x) - 1))

    return float(within(real) + within(generated) - 2 * kernel(real, generated).mean())


def precision_recall(
    real: Float[np.ndarray, "N D"], generated: Float[np.ndarray, "M D"], *, neighbours: int = 3
) -> PrecisionRecall:
    """Compute precision and recall of samples by manifolds of nearest neighbours (Kynkäänniemi et al. 2019).

    The manifold of a set is the union of balls around its rows, each as large as the distance to the k-th nearest other
    row of the set.

    Args:
      neighbours: k.

    Raises:
      ValueError: fewer rows than k + 1, k below 1, different widths, or numbers that are not finite.

    >>> precision_recall(np.array([[0.0], [1.0], [2.0]]), np.array([[0.5], [0.6], [9.0]]), neighbours=1)
    PrecisionRecall(precision=0.6666666666666666, recall=0.6666666666666666)
    """
    if neighbours < 1:
        raise ValueError(f"neighbours must be at least 1, got {neighbours}")
    real, generated = _checked(real, generated, least=neighbours + 1)
    return PrecisionRecall(
        float(_covered(real, generated, neighbours).mean()), float(_covered(generated, real, neighbours).mean())
    )


def nearest_rows(of: Float[np.ndarray, "M D"], among: Float[np.ndarray, "N D"]) -> tuple[np.ndarray, np.ndarray]:
    """Find for each row the nearest of others by Euclidean distance; return their numbers and the distances, [M]."""
    of, among = _checked(of, among, least=1)
    near = [(d.argmin(axis=1), d.min(axis=1)) for d in _blocks(of, among)]
    number, squared = (np.concatenate(each) for each in zip(*near, strict=True))
    return number, np.sqrt(squared)


def _covered(manifold: np.ndarray, rows: np.ndarray, neighbours: int) -> Bool[np.ndarray, " M"]:
    """Return which rows lie on the manifold of others."""
    radii = _map(manifold, manifold, lambda d: np.partition(d, neighbours, axis=1)[:, neighbours])
    return _map(rows, manifold, lambda d: np.any(d <= radii, axis=1))


def _map(rows: np.ndarray, others: np.ndarray, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    return np.concatenate([function(distances) for distances in _blocks(rows, others)])


def _blocks(rows: np.ndarray, others: np.ndarray) -> Any:
    """Yield squared distances of some rows to all others."""
    norms = np.sum(others**2, axis=1)
    for start in range(0, len(rows), ROWS):
        part = rows[start : start + ROWS]
        yield np.maximum(np.sum(part**2, axis=1)[:, None] + norms - 2 * part @ others.T, 0)


def _checked(real: Any, generated: Any, *, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Check two sets of features, and return them in float64."""
    real, generated = (np.asarray(each, np.float64) for each in (real, generated))
    if real.ndim != 2 or generated.ndim != 2 or real.shape[1] != generated.shape[1]:
        raise ValueError(
            f"features must be two arrays [rows, width] of one width, got shapes {real.shape} and {generated.shape}"
        )
    if min(len(real), len(generated)) < least:
        raise ValueError(f"features must have at least {least} rows each, got {len(real)} and {len(generated)}")
    check_finite("features", real, generated)
    return real, generated
