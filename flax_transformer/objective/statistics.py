"""Training models with batch norms: any objective, and the statistics that go along.

Axes: B rows, T positions, D width.
"""

from typing import Any, ClassVar

import jax

from flax_transformer.frozen import frozen
from flax_transformer.objective.objective import Batch, KnownStates, ObjectiveWrapper
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.parallel import path_name
from flax_transformer.train.carry import BATCH_STATISTICS, Carry, with_statistics


@frozen
class BatchStatistics(ObjectiveWrapper):
    """Minimise an objective of a model with batch norms, which normalise by each batch while training.

    The model gives its hidden states and new running statistics as `model.observe(**inputs, key=key)`. Evaluation uses
    the running ones, whatever else is in the batch. A part of a batch has other statistics than the whole, so that a
    batch is never cut.
    """

    carry: ClassVar[Carry] = BATCH_STATISTICS
    separable: ClassVar[bool] = False

    def __call__(
        self, model: Any, batch: Batch, *, key: jax.Array | None = None, carried: dict[str, jax.Array]
    ) -> tuple[jax.Array, dict[str, jax.Array], dict[str, jax.Array]]:
        """Sum the loss over a batch; give the new statistics beside."""
        keys = split_keys(key)
        model = with_statistics(model, carried)
        hidden, new = model.observe(**batch["inputs"], key=keys[0])
        loss, metrics = self.of(KnownStates(model, hidden), batch, key=keys[1])
        return loss, metrics, {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(new)}
