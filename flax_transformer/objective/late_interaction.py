"""The loss of late interaction: a query told from passages by the vectors of their tokens.

Axes: B rows, C columns, T positions, D width.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from flax_transformer.frozen import frozen
from flax_transformer.objective.contrast import from_negatives
from flax_transformer.objective.objective import Batch, Loss, Objective
from flax_transformer.objective.sentence import embed_columns
from flax_transformer.ops.late_interaction import max_similarity
from flax_transformer.ops.norm import unit
from flax_transformer.parallel import constrain


@frozen
class LateInteractionLoss(Objective):
    """Sum over rows the cross-entropy of finding the passage of each query among those of the batch, its own hard
    negatives and those of others included (Khattab & Zaharia 2020, https://arxiv.org/abs/2004.12832; in-batch negatives
    as in Santhanam et al. 2022, https://arxiv.org/abs/2112.01488).

    A row has several texts: a query, its passage, and perhaps others that do not answer it. The model gives a vector
    for each token, `model.output(model.hidden_states(**inputs))` [B, C, T, D], which is divided by its length. Scores
    are `ops.late_interaction.max_similarity` of the tokens that are compared, `labels` [B, C, T].
    """

    scale: float = 1.0
    """What scores are multiplied by."""

    separable: ClassVar[bool] = False
    better: ClassVar[Mapping[str, str]] = {"loss": "lower", "accuracy": "higher"}

    def __post_init__(self):
        if not self.scale > 0:
            raise ValueError(f"scale must be positive, got {self.scale}")

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over a batch; `accuracy` counts queries whose passage scores above all others."""
        vectors, counts = embed_columns(model, batch, key), batch["labels"]
        if vectors.ndim != 4 or vectors.shape[1] < 2 or counts.shape != vectors.shape[:3]:
            raise ValueError(
                "LateInteractionLoss takes rows of at least 2 texts, a vector for each token [B, C, T, D] and labels "
                f"[B, C, T], got vectors {vectors.shape} and labels {counts.shape}"
            )
        vectors = unit(vectors)
        length = vectors.shape[2]
        passages = jnp.swapaxes(vectors[:, 1:], 0, 1).reshape(-1, length, vectors.shape[-1])
        tokens = jnp.swapaxes(counts[:, 1:], 0, 1).reshape(-1, length)
        tokens |= ~tokens.any(axis=1, keepdims=True)  # a score of an empty one, which no row is compared with
        scores = self.scale * max_similarity(vectors[:, 0], passages, counts[:, 0], tokens)
        scores = constrain(scores, "batch", None)
        return from_negatives(scores, batch)
