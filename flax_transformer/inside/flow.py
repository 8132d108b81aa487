"""How information flows through attention: rollout, maximum flow, and the norms of what is really moved.

Axes: L layers, B batch, N heads, K key/value heads, T query positions, S key positions, H head width, D width.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Either = Array | np.ndarray
STEPS = 1 << 24
"""Capacities of a flow are whole numbers: so many to a weight of 1."""


def rollout(weights: Float[Either, "L *B N T T"], *, residual: float = 0.5) -> Float[np.ndarray, "L *B T T"]:
    """Follow attention back through the layers (Abnar & Zuidema 2020, https://arxiv.org/abs/2005.00928).

    Heads are averaged, and the residual connection has a part of each row.

    Args:
      residual: that part.

    >>> rollout(np.full((2, 1, 2, 2), 0.5))[1].tolist()
    [[0.625, 0.375], [0.375, 0.625]]
    """
    through, found = np.eye(weights.shape[-1], dtype=np.float32), []
    for layer in _mixed(weights, residual):
        through = layer @ through
        found.append(through)
    return np.stack(found)


def attention_flow(
    weights: Float[Either, "L N T T"], *, layer: int = -1, residual: float = 0.5
) -> Float[np.ndarray, "T T"]:
    """Return the maximum flow from each position above a layer down to each position of the input, rows summing to 1.

    Edges are the averaged weights with the residual connection (Abnar & Zuidema 2020, §3). It takes T² flows.

    >>> attention_flow(np.full((1, 1, 2, 2), 0.5)).tolist()
    [[0.75, 0.25], [0.25, 0.75]]
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    layers = _mixed(weights, residual)
    layers = layers[: range(len(layers))[layer] + 1]
    depth, T = layers.shape[:2]
    capacity = np.zeros(((depth + 1) * T, (depth + 1) * T), np.int32)
    for i, each in enumerate(layers):  # from a position above to those that it attends to
        capacity[(i + 1) * T : (i + 2) * T, i * T : (i + 1) * T] = np.round(STEPS * each)
    graph = csr_array(capacity)
    found = np.array([
        [maximum_flow(graph, depth * T + t, s).flow_value for s in range(T)] for t in range(T)
    ], np.float64)  # fmt: skip
    return (found / np.maximum(found.sum(-1, keepdims=True), 1)).astype(np.float32)


@jax.default_matmul_precision("highest")
def value_weighted_norms(
    weights: Float[Either, "*B N T S"], values: Float[Either, "*B S K H"], out: Float[Either, "*_ N H D"]
) -> Float[Either, "*B N T S"]:
    """Return the norm of what each query is given by each key: weight times value, through the output layer.

    Weights alone say nothing of how long the values are (Kobayashi et al. 2020, https://arxiv.org/abs/2004.10102).

    Args:
      out: kernel of the output layer; its leading axes are the first of the others'.
    """
    library = np if isinstance(weights, np.ndarray) else jnp
    values = library.repeat(values, weights.shape[-3] // values.shape[-2], axis=-2)
    gap = values.ndim - 3 - (out.ndim - 3)
    out = out.reshape(*out.shape[:-3], *[1] * gap, *out.shape[-3:])
    gram = library.einsum("...nhd,...ngd->...nhg", out, out)
    squares = library.einsum("...snh,...nhg,...sng->...ns", values, gram, values)
    return weights * library.sqrt(library.maximum(squares, 0))[..., None, :]


def _mixed(weights: Either, residual: float) -> np.ndarray:
    """Average heads, and add the residual connection."""
    mean = np.asarray(weights, np.float32).mean(-3)
    return (1 - residual) * mean + residual * np.eye(mean.shape[-1], dtype=np.float32)
