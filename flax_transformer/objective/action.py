"""Actions, told by what was seen and the return that was to come.

Axes: B rows, T steps, A kinds of actions, or numbers of one.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from flax_transformer.frozen import frozen
from flax_transformer.objective.objective import Batch, Loss, Objective, is_right
from flax_transformer.ops import cross_entropy


@frozen
class ActionLoss(Objective):
    """Sum the cross-entropy of actions of a few kinds over the steps of a batch (Chen et al. 2021).

    The model says `model.output(hidden).actions` [B, T, A]; labels are kinds [B, T], steps of weight 0 count nothing.
    """

    better: ClassVar[Mapping[str, str]] = {"loss": "lower", "accuracy": "higher"}
    unit: ClassVar[str] = "steps"

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over the steps of a batch."""
        if batch["labels"].ndim > batch["weights"].ndim:
            raise ValueError("actions must be of a few kinds, got numbers, of which SquaredActionLoss is the loss")
        logits = model.output(model.hidden_states(**batch["inputs"], key=key)).actions
        loss, count = cross_entropy(logits, batch["labels"], batch["weights"])
        right = jnp.sum(is_right(logits, batch["labels"]) * batch["weights"])
        return loss, {"count": count, "accuracy": right}


@frozen
class SquaredActionLoss(Objective):
    """Sum over the steps of a batch the mean squared error of actions that are numbers (Chen et al. 2021).

    The model says `model.output(hidden).actions` [B, T, A], and so do labels; steps of weight 0 count nothing.
    """

    better: ClassVar[Mapping[str, str]] = {"loss": "lower"}
    unit: ClassVar[str] = "steps"

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over the steps of a batch."""
        if batch["labels"].ndim == batch["weights"].ndim:
            raise ValueError("actions must be numbers, got kinds, of which ActionLoss is the loss")
        actions = model.output(model.hidden_states(**batch["inputs"], key=key)).actions
        errors = jnp.mean(jnp.square(actions - batch["labels"]), axis=-1)
        return jnp.sum(errors * batch["weights"]), {"count": batch["weights"].sum()}
