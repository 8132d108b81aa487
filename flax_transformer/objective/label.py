"""Cross-entropy of classes.

Axes: B rows, T positions, E classes.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from flax_transformer.frozen import frozen
from flax_transformer.objective.objective import Batch, Loss, Objective, is_right
from flax_transformer.ops import cross_entropy, soft_cross_entropy
from flax_transformer.ops.split_keys import split_keys


@frozen
class LabelLoss(Objective):
    """Sum the cross-entropy of each label's class, and count the right ones.

    The model gives the scores of classes as `model.output(hidden, key=key)`: [B, E] for labels [B], one a row, or
    [B, T, E] for labels [B, T] of every position. Each counts as often as its weight says. Labels may be distributions
    over the classes, with an axis E more, as mixing images makes them; right is then the class that has the most.
    """

    label_smoothing: float = 0.0
    """How much of the target goes evenly to all classes."""

    better: ClassVar[Mapping[str, str]] = {"loss": "lower", "accuracy": "higher"}

    def __post_init__(self):
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1), got {self.label_smoothing}")

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over the labels of a batch."""
        keys = split_keys(key)
        logits = model.output(model.hidden_states(**batch["inputs"], key=keys[0]), key=keys[1])
        labels, weights = batch["labels"], batch["weights"]
        loss, hard = cross_entropy, labels
        if labels.ndim == logits.ndim:
            loss, hard = soft_cross_entropy, labels.argmax(-1)
        total, count = loss(logits, labels, weights, label_smoothing=self.label_smoothing)
        return total, {"count": count, "accuracy": jnp.sum(is_right(logits, hard) * weights)}
