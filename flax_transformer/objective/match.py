"""Texts read with images: whether they belong together, where they nearly do and where they do (Li et al. 2021,
https://arxiv.org/abs/2107.07651; Li et al. 2022, https://arxiv.org/abs/2201.12086).

Axes: B pairs, T positions.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.objective.contrast import ContrastiveLoss, present_pairs, same_pairs
from flax_transformer.objective.objective import Batch, Loss, is_right
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.train.mean import Mean, summed


@frozen
class MatchLoss(ContrastiveLoss):
    """Add to the contrastive loss the cross-entropy of telling, by reading a text with an image, whether they belong
    together: of every pair, of every text with another's image, and of every image with another's text.

    The other is drawn from the batch, as often as the contrastive scores take the two for a pair; without a key it is
    the likeliest. It is never an absent pair, nor one whose text says the same. The model has, beside what
    `ContrastiveLoss` asks for, `states` of images in its hidden states, and
    `match(tokens, states, lengths=…, key=…)` [B, 2], the scores of no and yes.
    """

    weight: float = 1.0
    """Of telling, beside contrast."""

    better: ClassVar[Mapping[str, str]] = {
        **ContrastiveLoss.better, "contrast_loss": "lower", "match_loss": "lower", "match_accuracy": "higher",
    }  # fmt: skip

    def __post_init__(self):
        super().__post_init__()
        if not self.weight > 0:
            raise ValueError(f"weight must be positive, got {self.weight}")

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum both losses over the pairs of a batch; `match_accuracy` is of all that is told."""
        keys = split_keys(key, 4)
        inputs = batch["inputs"]
        seen = model.hidden_states(**inputs, key=keys[0])
        scores = model.output(seen, limit=self.limit)
        present = present_pairs(batch, scores)
        same = same_pairs(batch, scores)
        total, metrics = self.over(scores, present, same)
        others = present[:, None] & present & ~same
        images, texts = hard_negatives(scores, others, keys[1]), hard_negatives(scores.T, others, keys[2])
        there = others.any(axis=1)
        pairs = [(None, None, present, 1), (None, images, there, 0), (texts, None, there, 0)]
        loss = count = right = jnp.zeros((), jnp.float32)
        for number, (text, image, which, belongs) in enumerate(pairs):
            tokens, lengths = (_picked(inputs.get(name), text) for name in ("tokens", "lengths"))
            own = None if key is None else jax.random.fold_in(keys[3], number)
            logits = model.match(tokens, _picked(seen.states, image), lengths=lengths, key=own)
            log_probabilities = jax.nn.log_softmax(logits)
            loss -= jnp.sum(jnp.where(which, log_probabilities[:, belongs], 0.0))
            right += jnp.sum(which & is_right(logits, jnp.full(len(which), belongs)))
            count += jnp.sum(which)
        match_loss, found = Mean(loss, count), {"contrast_loss": total, "match_accuracy": Mean(right, count)}
        terms = (Mean(total, metrics["count"]), match_loss.scaled(self.weight))
        return summed(terms, **metrics, **found, match_loss=match_loss)


def hard_negatives(
    scores: Float[Array, "B B"], others: Bool[Array, "B B"], key: PRNGKeyArray | None = None
) -> Int[Array, " B"]:
    """Draw for each row one of its others, by the softmax of their scores; without a key the best. Any, if none is."""
    allowed = jnp.where(others, jax.lax.stop_gradient(scores), -jnp.inf)
    return allowed.argmax(axis=1) if key is None else jax.random.categorical(key, allowed, axis=1)


def _picked(x: Array | None, rows: Array | None) -> Array | None:
    return x if x is None or rows is None else jnp.take(x, rows, axis=0)
