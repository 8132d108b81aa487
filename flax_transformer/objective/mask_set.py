"""Segments of images as a set: each is matched with one answer, a class and a mask, and all other answers are to be no
segment (Cheng et al. 2021, https://arxiv.org/abs/2112.01527).

Axes: B images, L layers that answer, Q answers (queries), M places for segments, E classes, H W height and width in
pixels, I J those of masks, P points.
"""

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.objective.detection import LARGE, answers_loss, assign
from flax_transformer.objective.objective import Batch, Loss, Objective
from flax_transformer.ops import widen
from flax_transformer.ops.deformable import Size, bilinear_corners, sample_points
from flax_transformer.ops.row_random import drawn
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.train.mean import Mean, summed


class MaskPoints(NamedTuple):
    """Points at random, x and y of each between 0 and 1, by which the answers of one layer are judged."""

    match: Float[Array, "B P 2"]
    """By which segments are matched with answers."""
    candidates: Float[Array, "B M _ 2"]
    """Of which those are taken where a mask is least sure."""
    rest: Float[Array, "B M _ 2"]
    """Which are taken beside these."""


@frozen
class MaskSetLoss(Objective):
    """Sum the losses of classes and masks over the segments of a batch, as `Mask2FormerLoss` of `transformers` does.

    The model answers as `model.output(hidden)`: `logits` [B, L, Q, E + 1], the last of no segment, and `masks`
    [B, L, Q, I, J], logits. The batch's labels are `segments` [B, H, W], of each pixel the number of its segment, where
    any that is none of 0 … M − 1 is of no segment, their `classes` [B, M] and `weights` [B, M], 0 where there is none;
    an image of weight 0 counts nothing. A segment of no class makes the loss NaN.

    Masks are compared at points, bilinear between pixels, by their cross-entropy and by dice, 1 − 2 |A ∩ B| / (|A| +
    |B|): in training at points drawn anew for every layer, most of them where the mask is least sure (Kirillov et al.
    2019, https://arxiv.org/abs/1912.08193); without a key at all places of the masks.

    The cross-entropy of classes is a mean over answers by their weights, the others are over segments.
    """

    class_weight: float = 2.0
    """What classes count, in the loss and where a segment is matched with an answer."""
    mask_weight: float = 5.0
    """The same of the cross-entropy of masks."""
    dice_weight: float = 5.0
    """The same of dice."""
    no_object_weight: float = 0.1
    """What an answer without a segment counts in the cross-entropy of classes, beside one with."""
    points: int = 12544
    """P, where a mask is looked at in training."""
    oversample: float = 3.0
    """How many times as many are drawn to find those where a mask is least sure."""
    importance: float = 0.75
    """Share of the points that are such."""
    auxiliary: bool = True
    """Whether the answers of every layer count, not the last's alone."""

    better: ClassVar[Mapping[str, str]] = {
        "loss": "lower", "class_loss": "lower", "mask_loss": "lower", "dice_loss": "lower",
    }  # fmt: skip
    unit: ClassVar[str] = "segments"

    def __post_init__(self):
        for field in fields(self):
            if (value := getattr(self, field.name)) < 0:
                raise ValueError(f"{field.name} must not be negative, got {value}")
        if not self.class_weight + self.mask_weight + self.dice_weight:
            raise ValueError("one of class_weight, mask_weight and dice_weight must be positive, got 0 for all")
        if self.points < 1 or self.oversample < 1 or self.importance > 1:
            raise ValueError(
                "points and oversample must be at least 1, importance at most 1, got "
                f"{self.points}, {self.oversample}, {self.importance}"
            )

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over the segments of a batch; what it reports is of the last layer.

        Raises:
          ValueError: when an image has places for more segments than there are answers.
        """
        keys = split_keys(key, 3)
        found = model.output(model.hidden_states(**batch["inputs"], key=keys[0]), key=keys[1])
        logits, masks = (widen(part) if self.auxiliary else widen(part[:, -1:]) for part in (found.logits, found.masks))
        rows = batch["weights"].astype(jnp.float32)
        labels = {**batch["labels"], "weights": batch["labels"]["weights"] * rows[:, None]}
        B, L, Q, _ = logits.shape
        if (M := labels["weights"].shape[1]) > Q:
            raise ValueError(f"an image must not have more segments than the model has queries, got {M}, {Q} queries")
        layers = [
            self.layer(logits[:, i], masks[:, i], labels, rows, points=self.draw(own, B, M))
            for i, own in enumerate(split_keys(keys[2], L))
        ]
        total = {name: sum(each[name] for each in layers) for name in layers[-1]}
        given = labels["weights"] > 0
        matched, segments = jnp.sum(rows * given.sum(-1)), labels["weights"].sum()
        answers = matched + self.no_object_weight * (rows.sum() * Q - matched)
        counts = {"class_loss": answers, "mask_loss": segments, "dice_loss": segments}
        weights = {"class_loss": self.class_weight, "mask_loss": self.mask_weight, "dice_loss": self.dice_weight}
        terms = tuple(Mean(weights[name] * total[name], counts[name]) for name in weights)
        last = {name: Mean(value, counts[name]) for name, value in jax.lax.stop_gradient(layers[-1]).items()}
        return summed(terms, segments, **last)

    def draw(self, key: PRNGKeyArray | None, rows: int, segments: int) -> MaskPoints | None:
        """Draw the points of a layer, for each image and each place for a segment; None without a key."""
        if key is None:
            return None
        unsure = int(self.importance * self.points)
        shapes = MaskPoints(
            (rows, self.points, 2),
            (rows, segments, int(self.oversample * self.points), 2),
            (rows, segments, self.points - unsure, 2),
        )
        keys = split_keys(key, len(shapes))
        return MaskPoints(
            *(drawn(partial(jax.random.uniform, own), shape) for own, shape in zip(keys, shapes, strict=True))
        )

    def layer(
        self, logits: Float[Array, "B Q E"], masks: Float[Array, "B Q I J"], labels: Mapping[str, Array],
        rows: Float[Array, "B"], *, points: MaskPoints | None = None,
    ) -> dict[str, Float[Array, ""]]:  # fmt: skip
        """Sum what the answers of one layer cost; rows of weight 0 count nothing.

        Args:
          points: at which masks are compared; None: at all of their places.
        """
        there, classes = labels["weights"] > 0, labels["classes"]
        wrong = there & ((classes < 0) | (classes >= logits.shape[-1] - 1))
        labels = {**labels, "classes": jnp.where(there & ~wrong, classes, 0)}
        every = jnp.broadcast_to(_centres(masks.shape[-2:]), (len(masks), masks.shape[-2] * masks.shape[-1], 2))
        queries = self.match(logits, masks, labels, every if points is None else points.match)
        chosen = jnp.take_along_axis(masks, queries[..., None, None], axis=1)  # [B, M, I, J]
        if points is None:
            own = jnp.broadcast_to(every[:, None], (*queries.shape, *every.shape[1:]))
        else:
            own = self._unsure(chosen, points)
        given = sample_points(chosen[..., None], own)[..., 0]  # [B, M, P]
        ids, corners = _read(labels["segments"], own)
        real = jnp.sum(corners * (ids == jnp.arange(queries.shape[1])[:, None, None]), -1)
        crossed = (jax.nn.softplus(given) - given * real).mean(-1)
        inside = jax.nn.sigmoid(given)
        dice = 1 - (2 * (inside * real).sum(-1) + 1) / (inside.sum(-1) + real.sum(-1) + 1)
        weights = jnp.where(wrong, jnp.nan, labels["weights"])
        return {
            "class_loss": answers_loss(logits, queries, labels, rows, self.no_object_weight),
            "mask_loss": jnp.sum(jnp.where(there, crossed * weights, 0)),
            "dice_loss": jnp.sum(jnp.where(there, dice * weights, 0)),
        }

    def match(
        self, logits: Float[Array, "B Q E"], masks: Float[Array, "B Q I J"], labels: Mapping[str, Array],
        points: Float[Array, "B P 2"],
    ) -> Int[Array, "B M"]:  # fmt: skip
        """Match each segment with an answer of its own, at the least total cost (Kuhn 1955)."""
        likely = jax.nn.softmax(logits, axis=-1)
        class_cost = -jnp.take_along_axis(likely, labels["classes"][:, None, :], axis=-1)  # [B, Q, M]
        given = sample_points(jnp.moveaxis(masks, 1, -1), points)  # [B, P, Q]
        ids, corners = _read(labels["segments"], points)
        number = jnp.arange(labels["weights"].shape[1])[:, None]
        real = jnp.sum(corners[..., None, :] * (ids[..., None, :] == number), -1)  # [B, P, M]
        both = partial(jnp.einsum, "bpq,bpm->bqm", precision=jax.lax.Precision.HIGHEST)
        mask_cost = (both(jax.nn.softplus(-given), real) + both(jax.nn.softplus(given), 1 - real)) / given.shape[1]
        inside = jax.nn.sigmoid(given)
        areas = inside.sum(1)[..., None] + real.sum(1)[:, None]
        dice_cost = 1 - (2 * both(inside, real) + 1) / (areas + 1)
        cost = self.class_weight * class_cost + self.mask_weight * mask_cost + self.dice_weight * dice_cost
        cost = jnp.where(jnp.isfinite(cost), cost, LARGE)
        # A segment that is none costs the same everywhere, and so takes an answer that nobody needs.
        return assign(jax.lax.stop_gradient(jnp.where(labels["weights"][:, None] > 0, cost, 0)))

    def _unsure(self, masks: Float[Array, "B M I J"], points: MaskPoints) -> Float[Array, "B M P 2"]:
        """Choose the candidates at which masks are least sure, and put the rest beside."""
        values = sample_points(jax.lax.stop_gradient(masks)[..., None], points.candidates)[..., 0]
        best = jax.lax.top_k(-jnp.abs(values), self.points - points.rest.shape[-2])[1]
        return jnp.concatenate([jnp.take_along_axis(points.candidates, best[..., None], axis=-2), points.rest], axis=-2)


def _centres(size: Size) -> Float[Array, "P 2"]:
    """Return the middles of a grid's places, line by line."""
    y, x = ((jnp.arange(side) + 0.5) / side for side in size)
    return jnp.stack(jnp.meshgrid(x, y), axis=-1).reshape(-1, 2)


def _read(
    segments: Int[Array, "B H W"], points: Float[Array, "B *d 2"]
) -> tuple[Int[Array, "B *d 4"], Float[Array, "B *d 4"]]:
    """Return of which segments the four pixels around each point are, and how much each counts."""
    flat, weights = bilinear_corners(points, segments.shape[-2:])
    ids = jnp.take_along_axis(segments.reshape(len(segments), -1), flat.reshape(len(flat), -1), axis=1)
    return ids.reshape(flat.shape), weights
