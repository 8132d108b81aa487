"""Cross-entropy of tokens: next ones, those of a translation, masked ones.

Axes: B rows, T positions, M places a row that are looked at.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.nn import own_tables
from flax_transformer.objective.objective import Batch, Loss, Objective


@frozen
class TokenLoss(Objective):
    """Sum the cross-entropy of labels [B, T], each as often as its weight says.

    The model may be decoder-only, an encoder-decoder or a masked language model. With `positions` [B, M] in the batch,
    labels and weights are [B, M] too, and only the tokens at those places are looked at.
    """

    label_smoothing: float = 0.0
    """How much of the target goes evenly to all tokens."""
    z_loss: float = 0.0
    """Factor on the squared log-normaliser."""
    chunk: int = 2048
    """Tokens whose logits exist at a time; more may be faster on an accelerator, and take more memory."""

    better: ClassVar[Mapping[str, str]] = {"loss": "lower", "perplexity": "lower"}
    unit: ClassVar[str] = "tokens"

    def __post_init__(self):
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1), got {self.label_smoothing}")
        if not 0 <= self.z_loss < math.inf:
            raise ValueError(f"z_loss must not be negative, got {self.z_loss}")
        if self.chunk < 1:
            raise ValueError(f"chunk must be at least 1 token, got {self.chunk}")

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over the tokens of a batch."""
        model = own_tables(model)
        total, count, _ = self.scores(model, self.hidden(model, batch, key), batch)
        return total, {"count": count}

    def held_out(self, model: Any, batch: Batch) -> dict[str, jax.Array]:
        """Sum the loss as it is trained on, and as `plain` the cross-entropy that perplexity is made of."""
        model = own_tables(model)
        hidden = self.hidden(model, batch, None)
        total, count, _ = self.scores(model, hidden, batch)
        plain = total
        if self.label_smoothing or self.z_loss:
            plain = TokenLoss(chunk=self.chunk).scores(model, hidden, batch)[0]
        return {"loss": total, "plain": plain, "count": count}

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """Turn the plain cross-entropy into a perplexity."""
        rest = {name: value for name, value in means.items() if name != "plain"}
        return {**rest, "perplexity": math.exp(min(means["plain"], 100))}

    def hidden(self, model: Any, batch: Batch, key: jax.Array | None) -> jax.Array:
        """Compute the hidden states of all positions."""
        return model.hidden_states(**batch["inputs"], key=key)

    def scores(self, model: Any, hidden: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Sum the loss, the weights, and the weights of right guesses, from hidden states of all positions."""
        options = {"label_smoothing": self.label_smoothing, "z_loss": self.z_loss, "chunk": self.chunk}
        return model.output(looked_at(hidden, batch)).scores(batch["labels"], batch["weights"], **options)


def looked_at(hidden: Float[Array, "B T D"], batch: Batch) -> Float[Array, "B _ D"]:
    """Return the hidden states of the tokens that a batch looks at: those at its `positions` [B, M], or all."""
    if "positions" not in batch:
        return hidden
    positions = jnp.where(batch["weights"] > 0, batch["positions"], 0)  # what only fills up may lie anywhere
    return jnp.take_along_axis(hidden, positions[..., None], axis=1)
