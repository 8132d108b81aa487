"""Training models whose positions halt by themselves: any objective, and what thinking costs.

Axes: B rows, T positions.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from flax_transformer.frozen import frozen
from flax_transformer.nn import own_tables
from flax_transformer.nn.config import check_at_least
from flax_transformer.objective.objective import Batch, KnownStates, Loss, ObjectiveWrapper
from flax_transformer.train.mean import Mean, with_term


@frozen
class PonderLoss(ObjectiveWrapper):
    """Minimise an objective of a model whose positions halt, and how long they take (Graves 2016, §2.1).

    The model gives its hidden states and what its trunks tell as `model.observe(**inputs, key=key)`: of each trunk, at
    any depth, `ponder` and `steps` of each row [B], or of each position [B, T] where labels are of positions. What is
    added is their mean, by the weights in the batch, so that rows are apart. Evaluation has the objective, and `steps`.
    """

    weight: float = 0.01
    """Factor on the ponder cost, Graves' τ, as the Universal Transformer has it."""

    metrics: ClassVar[tuple[str, ...]] = ("ponder", "steps")
    """What is reported beside: the cost of all trunks together, and the steps of a position, the mean of all trunks."""

    def __post_init__(self):
        check_at_least(self, 0, "weight")

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over a batch."""
        model, hidden, sums = self._observed(model, batch, key)
        loss, metrics = self.of(KnownStates(model, hidden), batch, key=key)
        loss, metrics = with_term(loss, metrics, sums["ponder"].scaled(self.weight))
        return loss, {**metrics, **sums}

    def held_out(self, model: Any, batch: Batch) -> dict[str, Any]:
        """Sum what the objective reports of a batch, and the steps."""
        model, hidden, sums = self._observed(model, batch, None)
        return {**self.of.held_out(KnownStates(model, hidden), batch), "steps": sums["steps"]}

    def _observed(self, model: Any, batch: Batch, key: jax.Array | None) -> tuple[Any, jax.Array, dict[str, Mean]]:
        model = own_tables(model)
        hidden, aux = model.observe(**batch["inputs"], key=key)
        leaves = jax.tree_util.tree_leaves_with_path(aux)
        found = {name: [leaf for path, leaf in leaves if path[-1].key == name] for name in self.metrics}
        if not all(found.values()):
            raise ValueError("PonderLoss needs a model whose positions halt, got one with a fixed number of steps")
        weights = batch["weights"]
        rows = jnp.sum(weights, axis=tuple(range(1, weights.ndim)))

        def add(leaf):
            return jnp.sum(leaf * (rows if leaf.ndim == 1 else weights))

        count = weights.sum()
        sums = {name: Mean(sum(map(add, each)), count) for name, each in found.items()}
        return model, hidden, {**sums, "steps": Mean(sums["steps"].total / len(found["steps"]), count)}
