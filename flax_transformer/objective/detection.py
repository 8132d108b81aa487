"""Objects in images as a set: each is matched with one answer, and all other answers are to be no object.

Axes: B images, L layers that answer, Q answers (queries), M places for objects, E classes.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from optax.assignment import hungarian_algorithm

from flax_transformer.frozen import frozen
from flax_transformer.objective.objective import Batch, Loss, Objective
from flax_transformer.ops import widen
from flax_transformer.ops.boxes import generalised_overlap, to_corners
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.train.mean import Mean, summed

LARGE = 1e8


@frozen
class DetectionLoss(Objective):
    """Sum the losses of classes and boxes over the objects of a batch (Carion et al. 2020, §3.1).

    The model answers as `model.output(hidden)`: `logits` [B, L, Q, E + 1], the last of no object, and `boxes`
    [B, L, Q, 4]. The batch's labels are `boxes` [B, M, 4], by centres in shares of the image, their `classes` [B, M]
    and `weights` [B, M], 0 where there is no object; an image of weight 0 counts nothing. An object of no class, or
    whose box is not one, makes the loss NaN.

    Cross-entropy is a mean over answers by their weights, the others are over objects, and `count_error`, how many
    objects too many or too few are found, over images.
    """

    class_cost: float = 1.0
    """What the probability of its class counts where an object is matched with an answer."""
    box_cost: float = 5.0
    """The same of the distance between the boxes, |Δx| + |Δy| + |Δwidth| + |Δheight|."""
    overlap_cost: float = 2.0
    """The same of their generalised overlap."""
    box_weight: float = 5.0
    """What the distance counts in the loss, beside the cross-entropy of classes."""
    overlap_weight: float = 2.0
    """The same of the generalised overlap."""
    no_object_weight: float = 0.1
    """What an answer without an object counts in the cross-entropy, beside one with."""
    auxiliary: bool = True
    """Whether the answers of every layer count, not the last's alone."""

    better: ClassVar[Mapping[str, str]] = {
        "loss": "lower", "class_loss": "lower", "box_loss": "lower", "overlap_loss": "lower", "count_error": "lower",
    }  # fmt: skip
    unit: ClassVar[str] = "objects"

    def __post_init__(self):
        for name, value in vars(self).items():
            if value < 0:
                raise ValueError(f"{name} must not be negative, got {value}")
        if not self.class_cost + self.box_cost + self.overlap_cost:
            raise ValueError("one of class_cost, box_cost and overlap_cost must be positive, got 0 for all")

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over the objects of a batch; what it reports is of the last layer.

        Raises:
          ValueError: when an image has places for more objects than there are answers.
        """
        keys = split_keys(key)
        found = model.output(model.hidden_states(**batch["inputs"], key=keys[0]), key=keys[1])
        logits, boxes = (widen(part) if self.auxiliary else widen(part[:, -1:]) for part in (found.logits, found.boxes))
        rows = batch["weights"].astype(jnp.float32)
        labels = screened({**batch["labels"], "weights": batch["labels"]["weights"] * rows[:, None]}, logits.shape[-1])
        layers = [self.layer(logits[:, i], boxes[:, i], labels, rows) for i in range(logits.shape[1])]
        total = {name: sum(each[name] for each in layers) for name in ("class_loss", "box_loss", "overlap_loss")}
        given = labels["weights"] > 0
        matched, objects = jnp.sum(rows * given.sum(-1)), labels["weights"].sum()
        answers = matched + self.no_object_weight * (rows.sum() * logits.shape[2] - matched)
        counts = {"class_loss": answers, "box_loss": objects, "overlap_loss": objects, "count_error": rows.sum()}
        weights = {"class_loss": 1.0, "box_loss": self.box_weight, "overlap_loss": self.overlap_weight}
        terms = tuple(Mean(weights[name] * total[name], counts[name]) for name in weights)
        last = {name: Mean(value, counts[name]) for name, value in jax.lax.stop_gradient(layers[-1]).items()}
        return summed(terms, objects, **last)

    def layer(
        self,
        logits: Float[Array, "B Q E"],
        boxes: Float[Array, "B Q 4"],
        labels: Mapping[str, Array],
        rows: Float[Array, "B"],
    ) -> dict[str, Float[Array, ""]]:
        """Sum what the answers of one layer cost; rows of weight 0 count nothing."""
        given, none = labels["weights"], logits.shape[-1] - 1
        queries = self.match(logits, boxes, labels)
        chosen = jnp.take_along_axis(boxes, queries[..., None], axis=1)
        shared = generalised_overlap(to_corners(chosen), to_corners(labels["boxes"]))
        seen = ((logits.argmax(-1) != none).sum(-1) - (given > 0).sum(-1)) * rows
        return {
            "class_loss": answers_loss(logits, queries, labels, rows, self.no_object_weight),
            "box_loss": jnp.sum(jnp.abs(chosen - labels["boxes"]).sum(-1) * given),
            "overlap_loss": jnp.sum((1 - shared) * given),
            "count_error": jnp.sum(jnp.abs(seen)),
        }

    def match(
        self, logits: Float[Array, "B Q E"], boxes: Float[Array, "B Q 4"], labels: Mapping[str, Array]
    ) -> Int[Array, "B M"]:
        """Match each object with an answer of its own, at the least total cost (Kuhn 1955).

        Raises:
          ValueError: when there are places for more objects than answers.
        """
        Q, M = logits.shape[1], labels["weights"].shape[1]
        if M > Q:
            raise ValueError(f"an image must not have more objects than the model has queries, got {M}, {Q} queries")
        likely = jax.nn.softmax(logits, axis=-1)
        class_cost = -jnp.take_along_axis(likely, labels["classes"][:, None, :], axis=-1)  # [B, Q, M]
        one, other = boxes[:, :, None], labels["boxes"][:, None]
        distance = jnp.abs(one - other).sum(-1)
        shared = generalised_overlap(to_corners(one), to_corners(other))
        cost = self.class_cost * class_cost + self.box_cost * distance - self.overlap_cost * shared
        cost = jnp.where(jnp.isfinite(cost), cost, LARGE)
        # An object that is none costs the same everywhere, and so takes an answer that nobody needs.
        return assign(jax.lax.stop_gradient(jnp.where(labels["weights"][:, None] > 0, cost, 0)))


def fits_image(boxes: Float[Array, "*B 4"]) -> Bool[Array, "*B 4"]:
    """Return which numbers of boxes, by centres and sizes, can be fractions of an image; a tenth beyond its edge is."""
    return (boxes >= jnp.array([-0.1, -0.1, 0, 0])) & (boxes <= 1.1)


def screened(labels: Mapping[str, Array], outputs: int) -> dict[str, Array]:
    """Put NaN into the boxes of objects that have no class, or whose box is not within the image.

    Boxes are centres and sizes as fractions of the image: none negative, none above 1 by more than rounding. Where
    there is no object, class and box are those of any.
    """
    boxes, there = labels["boxes"], labels["weights"] > 0
    fits = (labels["classes"] >= 0) & (labels["classes"] < outputs - 1) & fits_image(boxes).all(-1)
    return {
        **labels,
        "classes": jnp.where(fits & there, labels["classes"], 0),
        "boxes": jnp.where(there[..., None], jnp.where(fits[..., None], boxes, jnp.nan), 0.5),
    }


def answers_loss(
    logits: Float[Array, "B Q E"], queries: Int[Array, "B M"], labels: Mapping[str, Array], rows: Float[Array, "B"],
    none_weight: float,
) -> Float[Array, ""]:  # fmt: skip
    """Sum the cross-entropy of the classes of answers, which is none, E − 1, of one that no object is matched with.

    Args:
      queries: with which answer each object is matched.
      labels: `classes` and `weights` [B, M] of the objects.
      rows: what each image counts.
      none_weight: what an answer without an object counts, beside one with.
    """
    mine = (queries[..., None] == jnp.arange(logits.shape[1])) & (labels["weights"][..., None] > 0)  # [B, M, Q]
    taken = mine.any(1)
    found = jnp.einsum("bmq,bm->bq", mine.astype(jnp.int32), labels["classes"])
    classes = jnp.where(taken, found, logits.shape[-1] - 1)
    weights = rows[:, None] * jnp.where(taken, 1.0, none_weight)
    likely = jnp.take_along_axis(jax.nn.log_softmax(logits), classes[..., None], axis=-1)[..., 0]
    return -jnp.sum(weights * likely)


@jax.vmap
def assign(cost: Float[Array, "Q M"]) -> Int[Array, "M"]:
    """Return with which answer each object is matched, so that all together cost least (Kuhn 1955)."""
    rows, columns = hungarian_algorithm(cost)
    return jnp.zeros(cost.shape[1], jnp.int32).at[columns].set(rows.astype(jnp.int32))
