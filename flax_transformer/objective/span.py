"""Ends of an answer, and the right one of several choices.

Axes: B rows, T positions, A choices.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from flax_transformer.frozen import frozen
from flax_transformer.objective.objective import Batch, Loss, Objective, is_right
from flax_transformer.ops import cross_entropy
from flax_transformer.ops.split_keys import split_keys


@frozen
class SpanLoss(Objective):
    """Sum the mean cross-entropy of an answer's first and last token (Devlin et al. 2019, section 4.2).

    The model scores every position as either, [B, T, 2]; `labels` [B, 2] are the positions. Only positions where
    `allowed` [B, T] is true can be one: those of the passage, and the first, which stands for no answer. `accuracy`
    counts rows with both ends right.
    """

    better: ClassVar[Mapping[str, str]] = {"loss": "lower", "accuracy": "higher"}

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over the rows of a batch."""
        keys = split_keys(key)
        scores = model.output(model.hidden_states(**batch["inputs"], key=keys[0]), key=keys[1])
        ends = _among(jnp.moveaxis(scores, -1, -2), batch["allowed"][..., None, :])
        weights = batch["weights"]
        total, _ = cross_entropy(ends, batch["labels"], jnp.broadcast_to(weights[..., None], batch["labels"].shape))
        right = is_right(ends, batch["labels"]).all(-1)
        return total / 2, {"count": weights.sum(), "accuracy": jnp.sum(right * weights)}


@frozen
class ChoiceLoss(Objective):
    """Sum the cross-entropy of the right one of several choices, each read by itself with what is asked.

    Inputs are [B, A, T], with `lengths` [B, A], 0 where a row has fewer choices; the model gives one score of each,
    [B, A, 1] (Radford et al. 2018, section 3.3). `labels` [B] are numbers of choices.
    """

    better: ClassVar[Mapping[str, str]] = {"loss": "lower", "accuracy": "higher"}

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over the rows of a batch."""
        keys = split_keys(key)
        scores = model.output(model.hidden_states(**batch["inputs"], key=keys[0]), key=keys[1])[..., 0]
        lengths, weights = batch["inputs"]["lengths"], batch["weights"]
        # A row that only fills up the batch has no choices at all.
        logits = _among(scores, (lengths > 0) | (weights == 0)[..., None])
        total, count = cross_entropy(logits, batch["labels"], weights)
        return total, {"count": count, "accuracy": jnp.sum(is_right(logits, batch["labels"]) * weights)}


def _among(scores: Float[Array, "*B T"], allowed: Bool[Array | np.ndarray, "*#B T"]) -> Float[Array, "*B T"]:
    return jnp.where(allowed, scores.astype(jnp.promote_types(scores.dtype, jnp.float32)), -1e9)
