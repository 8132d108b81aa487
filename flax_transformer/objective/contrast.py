"""Pairs, each told from all others of its batch: texts and images, or two images of one thing.

Axes: B pairs.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flax_transformer.frozen import frozen
from flax_transformer.objective.objective import Batch, Loss, Objective
from flax_transformer.parallel import path_name


@frozen
class ContrastiveLoss(Objective):
    """Sum over pairs the cross-entropy of finding the other half among those of the batch, the mean of both ways
    (Radford et al. 2021, https://arxiv.org/abs/2103.00020).

    The model scores every half with every other, `model.output(model.hidden_states(**inputs), limit=…)` [B, B]. On a
    mesh these are the pairs of all devices. A pair of weight 0 is nobody's other half.
    """

    limit: float = 100.0
    """The most that cosines are multiplied by, in the loss; after every update `log_scale` is cut back to it, so that
    what is evaluated and exported is what was trained."""

    separable: ClassVar[bool] = False
    better: ClassVar[Mapping[str, str]] = {"loss": "lower", "first_accuracy": "higher", "second_accuracy": "higher"}
    unit: ClassVar[str] = "pairs"

    def __post_init__(self):
        if not self.limit > 0:
            raise ValueError(f"limit must be positive, got {self.limit}")

    def project(self, model: Any) -> Any:
        """Cut the model's `log_scale`, wherever it is, back to the limit (Radford et al. 2021, §2.5)."""

        def cut(path: tuple, leaf: Any) -> Any:
            name = path_name(path).rpartition(".")[2]
            return jnp.minimum(leaf, jnp.log(self.limit).astype(leaf.dtype)) if name == "log_scale" else leaf

        return jax.tree_util.tree_map_with_path(cut, model)

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over the pairs of a batch; `first_accuracy`, `second_accuracy` count halves that find theirs.

        A guess is right if a half that belongs, its own or that of a pair with the same text, scores above all others.
        """
        scores = model.output(model.hidden_states(**batch["inputs"], key=key), limit=self.limit)
        return self.over(scores, present_pairs(batch, scores), same_pairs(batch, scores))

    def over(self, scores: Float[Array, "B B"], present: Bool[Array, " B"], same: Bool[Array, "B B"]) -> Loss:
        """Sum the loss over the pairs that are there, from scores."""
        ways = (sum_cross_entropy(each, present, present) / 2 for each in (scores, scores.T))
        return sum(ways), _right(scores, present, same)


@frozen
class SigmoidLoss(Objective):
    """Sum over pairs the cross-entropy of telling whether two halves belong together, of every half with every other
    (Zhai et al. 2023, https://arxiv.org/abs/2303.15343).

    The model is as `ContrastiveLoss` has it, but that its scores are logits by themselves: it learns what is added to
    them.
    """

    separable: ClassVar[bool] = False
    better: ClassVar[Mapping[str, str]] = {"loss": "lower", "first_accuracy": "higher", "second_accuracy": "higher"}
    unit: ClassVar[str] = "pairs"

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over the pairs of a batch; metrics as `ContrastiveLoss`'s."""
        scores = model.output(model.hidden_states(**batch["inputs"], key=key))
        present = present_pairs(batch, scores)
        own, both = jnp.eye(len(scores), dtype=bool), present[:, None] & present
        losses = jax.nn.softplus(jnp.where(own, -scores, scores))
        return jnp.sum(jnp.where(both, losses, 0.0)), _right(scores, present, same_pairs(batch, scores))


def sum_cross_entropy(
    scores: Float[Array, "B S"], shown: Bool[Array, "*#B S"], present: Bool[Array, " B"]
) -> Float[Array, ""]:
    """Sum over rows that are present the cross-entropy of finding column i, of row i, among those that are shown."""
    others = jnp.where(shown, scores, -jnp.inf)
    return jnp.sum(jnp.where(present, jax.nn.logsumexp(others, axis=1) - jnp.diagonal(scores), 0.0))


def present_pairs(batch: Batch, scores: Float[Array, "B ..."]) -> Bool[Array, " B"]:
    """Return which pairs are there."""
    weights = batch.get("weights")
    return jnp.ones(len(scores), bool) if weights is None else weights > 0


def from_negatives(scores: Float[Array, "B S"], batch: Batch) -> Loss:
    """Sum over rows the cross-entropy of finding the second text of each among all of the batch but the first ones.

    Args:
      scores: of each row's first text with the others, column after column; row i's own is column i.

    Returns:
      The sum, and `accuracy`, a count of rows whose own scores above all `negatives`.
    """
    present, wrong = present_pairs(batch, scores), negatives(batch, scores)
    right = present & (jnp.diagonal(scores) > jnp.where(wrong, scores, -jnp.inf).max(axis=1))
    total = sum_cross_entropy(scores, wrong | jnp.eye(*scores.shape, dtype=bool), present)
    return total, {"count": jnp.sum(present, dtype=jnp.float32), "accuracy": jnp.sum(right, dtype=jnp.float32)}


def negatives(batch: Batch, scores: Float[Array, "B S"]) -> Bool[Array, "B S"]:
    """Return which of all texts but the first of each row, column after column, are others than the row's second.

    Texts of rows that only fill up a batch are none, nor are those with the same `tokens` as the second, as where two
    questions are answered by one passage.
    """
    rows, columns = len(scores), scores.shape[1] // len(scores)
    others = jnp.tile(present_pairs(batch, scores), columns) & ~jnp.eye(*scores.shape, dtype=bool)
    tokens = batch["inputs"].get("tokens")
    if tokens is None:
        return jnp.broadcast_to(others, scores.shape)
    second, all_of_them = tokens[:, 1], jnp.swapaxes(tokens[:, 1:], 0, 1).reshape(rows * columns, -1)
    return others & (second[:, None] != all_of_them).any(axis=-1)


def same_pairs(batch: Batch, scores: Float[Array, "B B"]) -> Bool[Array, "B B"]:
    """Return which pairs say the same: each itself, and those with the same `tokens`."""
    tokens = batch["inputs"].get("tokens")
    itself = jnp.eye(len(scores), dtype=bool)
    return itself if tokens is None else itself | (tokens[:, None] == tokens[None]).all(axis=-1)


def _right(
    scores: Float[Array, "B B"], present: Bool[Array, " B"], same: Bool[Array, "B B"]
) -> dict[str, Float[Array, ""]]:
    """Count the pairs that are there, and those for which a half that belongs scores above all that do not.

    A tie with one that does not counts as not found, so that a model that gives one vector to all finds nothing.
    """
    both = present[:, None] & present

    def best(which, axis):
        return jnp.where(both & which, scores, -jnp.inf).max(axis)

    sides = {"first_accuracy": 1, "second_accuracy": 0}
    found = {name: best(same, axis) > best(~same, axis) for name, axis in sides.items()}
    return {name: jnp.sum(present & each, dtype=jnp.float32) for name, each in {"count": present, **found}.items()}
