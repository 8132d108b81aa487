"""Connectionist temporal classification (Graves et al. 2006, https://www.cs.toronto.edu/~graves/icml_2006.pdf).

Axes: B rows, S positions, N tokens of a text, V vocabulary, with the blank.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.frozen import frozen
from flax_transformer.nn import own_tables
from flax_transformer.objective.objective import Batch, Loss, Objective, present_rows
from flax_transformer.ops import Mask, cross_entropy, widen
from flax_transformer.ops.split_keys import split_keys


@frozen
class CTCLoss(Objective):
    """Sum the negative log-likelihood of texts over all ways of laying their tokens along a recording.

    A way gives every position a token or the blank, and is a text where repetitions and then blanks are left out. The
    model gives scores [B, S, V] of every position, and says by `memory_mask` which positions audio of `lengths` has;
    without `lengths` among the inputs all count. `labels` are [B, N] and `weights` 1 where there is a token, 0 behind
    them. Every row counts once, the loss of each divided by its tokens if `mean_tokens` says so; one that only fills a
    batch counts nothing: of a recording of length 0, or, where there are no `lengths`, of a text without tokens.

    A text that has no way, as it takes more positions than there are, counts nothing: torch's `zero_infinity`. One with
    a token that is the blank, or outside of the vocabulary, makes the loss NaN.
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
        keys = split_keys(key)
        inputs, labels = batch["inputs"], batch["labels"]
        model = own_tables(model)
        made = model.output(model.hidden_states(**inputs, key=keys[0]), key=keys[1])
        if isinstance(made, Array):
            made = Logits(made)
        real = batch["weights"] > 0
        labels = jnp.where(real, labels, self.blank)  # what only fills up a row may be anything
        length = made.hidden.shape[1]
        positions, present = jnp.full(len(labels), length), present_rows(batch)
        if (lengths := inputs.get("lengths")) is not None:
            positions = model.memory_mask(Mask(lengths=lengths)).lengths
        again = (labels[:, 1:] == labels[:, :-1]) & real[:, 1:]  # a blank must stand between equal tokens
        fits = real.sum(axis=1) + again.sum(axis=1) <= positions
        weights = (fits & present) / (jnp.maximum(real.sum(axis=1), 1) if self.mean_tokens else 1)
        read = jnp.arange(length) < positions[:, None]
        return self.total(made, labels, real, read, weights), {"count": jnp.sum(present.astype(jnp.float32))}

    def total(
        self, made: Any, labels: Int[Array, "B N"], real: Bool[Array, "B N"], read: Bool[Array, "B S"],
        weights: Float[Array, "B"],
    ) -> Float[Array, ""]:  # fmt: skip
        """Sum the loss of rows, each as often as its weight says.

        Every way has one token a position, so what it is normalised by can be taken out of the sum over all ways: the
        recursion runs over a row's own tokens as if there were no others, and what the others take of a position is
        added to it, as the difference of two cross-entropies of the blank.

        Args:
          made: an `Output`, whose logits of all tokens are never held, or `Logits`.
          real, read: which labels, and which positions, count.
        """
        blanks = jnp.full_like(labels[:, :1], self.blank)
        fault = jnp.any((labels < 0) | (labels == self.blank), axis=1, where=real)
        few = made.logits_of(jnp.concatenate([blanks, labels], axis=1))
        # A token is known by the place where its run begins: equal neighbours are the same, and others need not be.
        begins = jnp.pad(labels[:, 1:] != labels[:, :-1], ((0, 0), (1, 0)), constant_values=True)
        places = jax.lax.cummax(jnp.where(begins, jnp.arange(1, labels.shape[1] + 1), 0), axis=1)
        losses = optax.ctc_loss(few, 1.0 - read, places, 1.0 - real)
        blanks, blank_weights = jnp.full(read.shape, self.blank), weights[:, None] * read
        others = made.scores(blanks, blank_weights)[0] - cross_entropy(few, jnp.zeros_like(blanks), blank_weights)[0]
        losses = jnp.where(fault, jnp.nan, losses)
        return jnp.sum(jnp.where(weights > 0, weights * losses, 0.0)) + others


@dataclass(frozen=True)
class Logits:
    """What `Output` is, for scores of few tokens, which are there already."""

    hidden: Float[Array, "B S V"]

    def logits_of(self, tokens: Int[Array, "B N"]) -> Float[Array, "B S N"]:
        """Take the logits of some tokens."""
        return jnp.take_along_axis(widen(self.hidden), tokens[:, None], axis=-1)

    def scores(self, labels: Int[Array, "B S"], weights: Float[Array, "B S"]) -> tuple[Array, Array]:
        """Sum the cross-entropy of labels, and their weights."""
        return cross_entropy(self.hidden, labels, weights)
