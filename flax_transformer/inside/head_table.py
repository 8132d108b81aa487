"""What heads do over a corpus: how much of their attention goes where known kinds of heads look.

Axes: L layers, B texts, N heads, T positions.
"""

from collections.abc import Collection, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.ops import spectrum_rank

Either = Array | np.ndarray
OFFSETS = (-4, -3, -2, -1, 1, 2, 3, 4)
"""Keys so far from the query that heads are asked about, as syntactic relations often are (Clark et al. 2019)."""

IDLE = 0.01
"""Of what the head that writes most writes: a head that writes less does nothing."""


def attention_targets(
    ids: Int[Either, "B T"], seen: Bool[Either, "B T"] | None = None, delimiters: Collection[int] = ()
) -> dict[str, Bool[np.ndarray, "B T T"]]:
    """Return for each kind of head which keys [B, query, key] it would look at.

    "previous" is the token before, "same" the query itself, "duplicate" an earlier occurrence of its token, "induction"
    the token after an earlier occurrence (Olsson et al. 2022, https://arxiv.org/abs/2209.11895), "first" the first
    token, "delimiter" tokens such as separators and full stops; "offset k" a fixed distance.

    Args:
      seen: which positions are no padding.
      delimiters: ids of those tokens.

    >>> targets = attention_targets(np.array([[7, 8, 7]]))
    >>> targets["induction"][0].astype(int).tolist()
    [[0, 0, 0], [0, 0, 0], [0, 1, 0]]
    """
    ids = np.asarray(ids)
    T = ids.shape[-1]
    real = np.ones(ids.shape, bool) if seen is None else np.asarray(seen, bool)
    distance = np.arange(T) - np.arange(T)[:, None]
    alike = ids[:, :, None] == ids[:, None, :]
    after = np.zeros_like(alike)
    after[:, :, 1:] = alike[:, :, :-1]
    first = np.zeros((len(ids), 1, T), bool)
    first[np.arange(len(ids)), 0, real.argmax(-1)] = True
    found = {
        "previous": distance == -1,
        "same": distance == 0,
        "duplicate": alike & (distance < 0),
        "induction": after & (distance <= 0),
        "first": first,
        "delimiter": np.isin(ids, list(delimiters))[:, None, :],
        **{f"offset {k:+d}": distance == k for k in OFFSETS if k != -1},
    }
    both = real[:, :, None] & real[:, None, :]
    return {name: np.broadcast_to(each, both.shape) & both for name, each in found.items()}


def head_table(
    weights: Float[Either, "L B N T T"],
    targets: Mapping[str, Bool[Either, "B T T"]],
    norms: Float[Either, "L B N T T"] | None = None,
) -> dict[str, Float[np.ndarray, "L N"]]:
    """Return for each kind the mean weight that heads give to its keys, over queries that have such a key.

    NaN where no query has one. "rank" is how many of the largest singular values of a head's weights make 90 % of their
    sum, on average over texts.

    Args:
      targets: of `attention_targets`, or of one's own.
      norms: of what heads move from keys to queries, such as `value_weighted_norms` gives. Then "written" is their sum
        over keys, on average over queries, of the largest head's: what a head looks at matters as far as it writes.
    """
    weights = np.asarray(weights, np.float32)
    found = {name: np.asarray(_share(weights, jnp.asarray(each))) for name, each in targets.items()}
    if norms is not None:
        moved = np.asarray(norms, np.float32).sum(-1).mean((1, 3))
        found["written"] = moved / max(float(moved.max()), 1e-30)
    return {**found, "rank": np.asarray(spectrum_rank(weights)).mean(1).astype(np.float32)}


def name_heads(
    table: Mapping[str, Float[np.ndarray, "L N"]], least: float = 0.4
) -> dict[tuple[int, int], tuple[str, float]]:
    """Name the heads that give one kind of keys at least so much of their weight: (layer, head) → kind and weight.

    Where the table tells what heads have "written", those that write next to nothing are named for nothing.

    >>> name_heads({"previous": np.array([[0.9, 0.1]]), "same": np.array([[0.0, 0.2]])})
    {(0, 0): ('previous', 0.9)}
    """
    kinds = [name for name in table if name not in ("rank", "written")]
    scores = np.nan_to_num(np.stack([table[name] for name in kinds]))
    best = scores.argmax(0)
    top = np.where(table.get("written", np.ones_like(scores[0])) >= IDLE, scores.max(0), 0)
    return {
        (int(layer), int(head)): (kinds[best[layer, head]], round(float(top[layer, head]), 6))
        for layer, head in np.argwhere(top >= least)
    }


@jax.jit
def _share(weights: Float[Either, "L B N T T"], target: Bool[Array, "B T T"]) -> Float[Array, "L N"]:
    there = target.any(-1)
    given = jnp.einsum("lbnts,bts->ln", weights, target.astype(weights.dtype))
    return given / jnp.where(there.sum() == 0, jnp.nan, there.sum())


def top_examples(
    activations: Float[Either, "B T F"], count: int, seen: Bool[Either, "B T"] | None = None
) -> tuple[Float[np.ndarray, "F _"], Int[np.ndarray, "F _ 2"]]:
    """Return for each neuron the largest activations, and the (text, position) of each, the largest first.

    >>> values, where = top_examples(np.array([[[1.0], [5.0]], [[3.0], [2.0]]]), 2)
    >>> values.tolist(), where.tolist()
    ([[5.0, 3.0]], [[[0, 1], [1, 0]]])
    """
    values = np.asarray(activations, np.float32)
    if seen is not None:
        values = np.where(np.asarray(seen, bool)[..., None], values, -np.inf)
    B, T, F = values.shape
    flat = values.reshape(B * T, F).T
    order = np.argsort(-flat, axis=-1, kind="stable")[:, :count]
    return np.take_along_axis(flat, order, -1), np.stack(np.divmod(order, T), -1)
