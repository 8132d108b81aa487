"""What BERT is pretrained on: masked tokens, and whether one sentence follows the other.

Axes: B rows, T positions, M masked tokens a row.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from flax_transformer.frozen import frozen
from flax_transformer.nn import own_tables
from flax_transformer.objective.objective import Batch, Loss, Objective, is_right, present_rows
from flax_transformer.objective.token import TokenLoss
from flax_transformer.ops import cross_entropy
from flax_transformer.train.mean import Mean, summed


@frozen
class MaskedLoss(TokenLoss):
    """Sum the cross-entropy of every masked token, and of next sentence prediction where the batch has its labels.

    The mean over masked tokens and the mean over rows are added, as BERT does (Devlin et al. 2019). The batch has
    `positions` [B, M] of the masked tokens, weight 0 where there is none; `next_sentence` [B], where the model has a
    head for it, is 0 where one sentence follows the other. Each of the two has a count of its own: masked tokens, and
    rows that are there (`present_rows`).
    """

    better: ClassVar[Mapping[str, str]] = {
        "loss": "lower", "masked_loss": "lower", "sentence_loss": "lower",
        "masked_accuracy": "higher", "sentence_accuracy": "higher",
    }  # fmt: skip

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum both losses over a batch."""
        model = own_tables(model)
        hidden = self.hidden(model, batch, key)
        total, count, right = self.scores(model, hidden, batch)
        metrics = {"count": count, "masked_accuracy": right}
        if "next_sentence" not in batch:
            return total, metrics
        rows = present_rows(batch).astype(jnp.float32)
        logits, labels = model.sentence(hidden), batch["next_sentence"]
        sentence = Mean(*cross_entropy(logits, labels, rows))
        right_sentence = Mean(jnp.sum(is_right(logits, labels) * rows), sentence.count)
        metrics |= {"masked_loss": total, "sentence_loss": sentence, "sentence_accuracy": right_sentence}
        return summed((Mean(total, count), sentence), **metrics)

    held_out = Objective.held_out
    summary = Objective.summary
