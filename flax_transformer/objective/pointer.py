"""The loss of a model that copies or generates (See et al. 2017, https://arxiv.org/abs/1704.04368)."""

import math
from typing import Any

import jax

from flax_transformer.frozen import frozen
from flax_transformer.nn import own_tables
from flax_transformer.objective.objective import Batch, Loss
from flax_transformer.objective.token import TokenLoss
from flax_transformer.ops.pointer import coverage_loss


@frozen
class PointerLoss(TokenLoss):
    """Sum the cross-entropy of labels under the mixture, and what is attended to again; reports p_gen beside.

    Label smoothing is of the generator's distribution alone.
    """

    coverage: float = 0.0
    """Factor on the coverage loss, 1 in the paper: Σ min(attention, what was attended to before) a token."""

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.coverage < math.inf:
            raise ValueError(f"coverage must not be negative, got {self.coverage}")

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over the tokens of a batch."""
        model = own_tables(model)
        states = self.hidden(model, batch, key)
        total, count, generated = self.scores(model, states, batch)
        metrics = {"count": count, "p_gen": generated}
        if self.coverage:
            repeated = coverage_loss(states.attention, batch["weights"])
            total, metrics = total + self.coverage * repeated, {**metrics, "coverage": repeated}
        return total, metrics

    def hidden(self, model: Any, batch: Batch, key: jax.Array | None) -> Any:
        """Compute the hidden states of all positions, and where they point."""
        return model.hidden_states(**batch["inputs"], key=key)

    def scores(self, model: Any, hidden: Any, batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Sum the loss, the weights and p_gen, from what `hidden` gives."""
        options = {"label_smoothing": self.label_smoothing, "z_loss": self.z_loss, "chunk": self.chunk}
        return model.output(hidden).scores(batch["labels"], batch["weights"], **options)

    def held_out(self, model: Any, batch: Batch) -> dict[str, jax.Array]:
        """Sum the loss, the plain cross-entropy that perplexity is made of, and p_gen."""
        model = own_tables(model)
        states = self.hidden(model, batch, None)
        total, count, generated = self.scores(model, states, batch)
        plain = PointerLoss(chunk=self.chunk).scores(model, states, batch)[0]
        return {"loss": total, "plain": plain, "count": count, "p_gen": generated}
