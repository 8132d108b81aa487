"""Connectionist temporal classification (Graves et al. 2006, https://www.cs.toronto.edu/~graves/icml_2006.pdf).

Axes: B rows, S positions, N tokens of a text, V vocabulary, with the blank.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from flax_transformer.frozen import frozen
from flax_transformer.objective.objective import Batch, Loss, Objective
from flax_transformer.ops import Mask


@frozen
class CTCLoss(Objective):
    """Sum the negative log-likelihood of texts over all ways of laying their tokens along a sound.

    A way gives every position a token or the blank, and is a text where repetitions and then blanks are left out. The
    model gives scores [B, S, V] of every position, and says by `memory_mask` which positions a sound of `lengths` has;
    without `lengths` among the inputs all count. `labels` are [B, N] and `weights` 1 where there is a token, 0 behind
    them. Every row counts once, the loss of each divided by its tokens if `mean_tokens` says so; one of a sound of
    length 0, which only fills a batch, counts nothing.

    A text that has no way, as it takes more positions than there are, counts nothing: torch's `zero_infinity`.
    """

    blank: int = 0
    """The token that stands for none."""
    mean_tokens: bool = False
    """Whether a row's loss is divided by its tokens, so that long texts count as short ones do."""

    better: ClassVar[Mapping[str, str]] = {"loss": "lower"}

    def __post_init__(self):
        if self.blank < 0:
            raise ValueError(f"blank must be a token, at least 0, got {self.blank}")

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over the rows of a batch."""
        keys = (None, None) if key is None else jax.random.split(key)
        inputs, labels = batch["inputs"], batch["labels"]
        logits = model.output(model.hidden_states(**inputs, key=keys[0]), key=keys[1])
        real = batch["weights"] > 0
        positions, present = jnp.full(len(labels), logits.shape[1]), jnp.ones(len(labels), bool)
        if (lengths := inputs.get("lengths")) is not None:
            positions, present = model.memory_mask(Mask(lengths=lengths)).lengths, lengths > 0
        padded = jnp.arange(logits.shape[1]) >= positions[:, None]
        losses = optax.ctc_loss(
            logits.astype(jnp.float32), padded.astype(jnp.float32), labels, (~real).astype(jnp.float32),
            blank_id=self.blank,
        )  # fmt: skip
        again = (labels[:, 1:] == labels[:, :-1]) & real[:, 1:]  # a blank must stand between equal tokens
        fits = real.sum(axis=1) + again.sum(axis=1) <= positions
        losses = losses / jnp.maximum(real.sum(axis=1), 1) if self.mean_tokens else losses
        total = jnp.sum(jnp.where(fits & present, losses, 0.0))
        return total, {"count": jnp.sum(present.astype(jnp.float32))}
