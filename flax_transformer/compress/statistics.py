"""What the linear layers of a model are given: sums over calibration data, of every layer of every stack at once.

Sums come out as the gradients of zeros: see `WatchedKernel`. Axes: I inputs, H bins.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flax_transformer.compress.kernel import kernels_of, linear_kernels
from flax_transformer.compress.watch import watch

BINS = 1024
"""Bins of a histogram, each 2.3 % wider than the one before: from 2⁻²⁰ to 2¹³ times apart."""
LEAST, STEP = 2.0**-20, 33 / BINS


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Statistics:
    """Sums over the inputs of a linear layer, float32."""

    count: Any
    """Rows, [*layers]."""
    magnitude: Any
    """Of the absolute values of each input, [*layers, I]."""
    largest: Any
    """How many absolute values are in each bin of `bin_edges`, [*layers, H]."""
    peak: Any
    """The largest absolute value of each input, [*layers, I]; of a layer that a call uses several times, the sum of
    each use's."""
    products: Any = None
    """Of the products of every two inputs, [*layers, I, I]: half the second derivative of the squared error."""


def _sums(x: Array, gradient: Array, zeros: Statistics, inputs: int) -> Statistics:
    return statistics_of(x.reshape(-1, math.prod(x.shape[x.ndim - inputs :])), products=zeros.products is not None)


@jax.default_matmul_precision("highest")
def statistics_of(x: Float[Array, "R I"], *, products: bool = False) -> Statistics:
    """Sum up rows of inputs."""
    x = x.astype(jnp.float32)
    size = jnp.abs(x)
    bins = jnp.clip(jnp.ceil(jnp.log2(jnp.maximum(size, LEAST) / LEAST) / STEP), 0, BINS - 1).astype(jnp.int32)
    return Statistics(
        count=jnp.float32(x.shape[0]),
        magnitude=size.sum(0),
        largest=jnp.zeros(BINS).at[bins.reshape(-1)].add(1.0),
        peak=size.max(0, initial=0.0),
        products=x.T @ x if products else None,
    )


def bin_edges() -> Float[np.ndarray, " H"]:
    """Return the largest absolute value of each bin."""
    return LEAST * 2.0 ** (STEP * np.arange(BINS))


def observe(
    model: Any, run: Callable[[Any, Any], Any], batches: Iterable[Any], *, products: bool = False,
    chosen: Callable[[str], bool] = lambda path: True,
) -> Mapping[str, Statistics]:  # fmt: skip
    """Run a model on calibration data, and sum up what its linear layers are given.

    Padding counts as what it is in the model, so batches had better be of texts of similar lengths.

    Args:
      run: `run(model, batch)` gives whatever depends on all layers: hidden states, logits, a loss.
      products: also of every two inputs, which `gptq` needs: 4 I² bytes a layer.
      chosen: which layers, by the path of the kernel.

    Returns:
      Of each kernel that was used, by path, its sums.

    Raises:
      ValueError: no batch.
    """
    axes = {path: each for path, each in linear_kernels(model).items() if chosen(path)}

    def nothing(path: str, kernel: Any) -> Statistics:
        layers, inputs = axes[path].layers, axes[path].inputs
        lead, size = kernel.shape[:layers], math.prod(kernel.shape[layers : layers + inputs])
        shapes = {"count": (), "magnitude": (size,), "largest": (BINS,), "peak": (size,)}
        shapes["products"] = (size, size) if products else None
        return Statistics(**{k: None if v is None else jnp.zeros((*lead, *v)) for k, v in shapes.items()})

    kernels = kernels_of(model)
    zeros = {path: nothing(path, kernels[path]) for path in axes}

    def total(model: Any, batch: Any) -> Array:
        leaves = (leaf for leaf in jax.tree.leaves(run(model, batch)) if jnp.issubdtype(leaf.dtype, jnp.floating))
        return sum(leaf.astype(jnp.float32).sum() for leaf in leaves)

    sums = watch(model, zeros, _sums, total, batches, _joined)
    return {path: each for path, each in sums.items() if float(each.count.max()) > 0}


def _joined(one: Statistics, other: Statistics) -> Statistics:
    """Return the statistics of two batches."""
    return replace(jax.tree.map(jnp.add, one, other), peak=jnp.maximum(one.peak, other.peak))


def input_range(found: Statistics, method: str, *, bits: int = 8, percentile: float = 99.99) -> Float[np.ndarray, "*L"]:
    """Choose the largest input that is represented, of each layer.

    Args:
      method: "absmax", the largest that was seen; "percentile"; or "mse", that of the least squared error.
      bits: of a value, for the squared error.
      percentile: of the absolute values.

    Raises:
      ValueError: another method, or a percentile that is none.
    """
    counts, edges = np.asarray(found.largest, np.float64), bin_edges()
    if method == "absmax":
        return np.asarray(_at(edges, counts > 0))
    if method == "percentile":
        if not 0 < percentile <= 100:
            raise ValueError(f"percentile must be in (0, 100], got {percentile}")
        below = counts.cumsum(-1) < percentile / 100 * counts.sum(-1, keepdims=True)
        return np.asarray(edges[below.sum(-1).clip(0, BINS - 1)])
    if method != "mse":
        raise ValueError(f"ranges must be absmax, percentile or mse, got {method!r}")
    steps = edges[:, None] / (2 ** (bits - 1) - 1)  # of each range that there may be, a row
    error = np.where(edges[None] > edges[:, None], (edges[None] - edges[:, None]) ** 2, steps**2 / 12)
    error = np.where((edges[None] < steps / 2), edges[None] ** 2, error)
    return np.asarray(edges[(counts @ error.T).argmin(-1)])


def _at(edges: np.ndarray, seen: np.ndarray) -> np.ndarray:
    last = seen.shape[-1] - 1 - np.argmax(seen[..., ::-1], axis=-1)
    return np.where(seen.any(-1), edges[last], edges[0])
