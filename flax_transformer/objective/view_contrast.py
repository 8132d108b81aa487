"""Views of images, each told from those of other images: SimCLR, and MoCo with a queue and without.

Axes: B rows, V views, E width of projections, K keys of a queue.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.objective.contrast import sum_cross_entropy
from flax_transformer.objective.objective import Batch, Loss
from flax_transformer.objective.teacher import Momentum, PredictedViews, Taught, ViewObjective, present, projected
from flax_transformer.ops.norm import unit
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.parallel import constrain
from flax_transformer.train.carry import Carry


@frozen
class ContrastOfViews(ViewObjective):
    """What these have in common: cosines over a temperature."""

    temperature: float = 0.2
    """What cosines are divided by."""

    separable: ClassVar[bool] = False
    better: ClassVar[Mapping[str, str]] = {"loss": "lower", "accuracy": "higher"}
    unit: ClassVar[str] = "images"

    def __post_init__(self):
        super().__post_init__()
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")

    def check(self, images: int, rows: int, size: tuple[int, int]) -> None:
        """Refuse one row a batch, which has nothing to be told from; else as `ViewObjective`'s."""
        super().check(images, rows, size)
        if rows < 2:
            raise ValueError(f"images are told from others of their batch, which must have at least 2, got {rows}")


@frozen
class SimCLRLoss(ContrastOfViews):
    """Sum over rows the cross-entropy of finding one view of an image by the other, among all other views of the batch
    (NT-Xent, Chen et al. 2020, https://arxiv.org/abs/2002.05709); the mean of both ways.

    On a mesh these are the views of all devices.
    """

    def __call__(self, model: Any, batch: Batch, *, key: PRNGKeyArray | None = None) -> Loss:
        """Sum the loss over a batch; `accuracy` is how often the other view scores above all else."""
        keys = split_keys(key)
        real = present(batch)
        return self.over(unit(projected(model, self.crops(batch, keys[0])[0], real, keys[1])), real)

    def over(self, z: Float[Array, "B 2 E"], real: Bool[Array, " B"]) -> Loss:
        """Sum the loss over rows, from vectors of length 1."""
        total, right = jnp.float32(0), jnp.float32(0)
        away = jnp.where(jnp.eye(len(z), dtype=bool), -jnp.inf, 0.0)
        for one, other in ((z[:, 0], z[:, 1]), (z[:, 1], z[:, 0])):
            across, within = (constrain(one @ each.T / self.temperature, "batch", None) for each in (other, one))
            scores = jnp.concatenate([across, within + away], axis=1)
            total += sum_cross_entropy(scores, jnp.tile(real, 2), real) / 2
            shown = jnp.where(jnp.tile(real, 2), scores, -jnp.inf)
            right += jnp.sum(real & is_first(jnp.diagonal(across), shown)) / 2
        return total, {"count": jnp.sum(real, dtype=jnp.float32), "accuracy": right}


def is_first(own: Float[Array, " B"], scores: Float[Array, "B S"]) -> Bool[Array, " B"]:
    """Return which rows have their own score, in column i of row i, above all others; a tie is not."""
    eye = jnp.eye(*scores.shape, dtype=bool)
    return own > jnp.where(eye, -jnp.inf, scores).max(axis=1)


@frozen
class MoCoLoss(ContrastOfViews):
    """Sum over rows the cross-entropy of finding the key of a view among the keys of earlier images, which a queue
    holds (MoCo v2, He et al. 2020, https://arxiv.org/abs/1911.05722; Chen et al. 2020).

    Keys are made by a teacher, the moving average of the model. Where the projector normalises by parts of the batch
    (`ProjectorConfig.groups`), keys are made of rows in another order, so that a query and its key do not share a part,
    by whose statistics they would be known.
    """

    queue: int = 4_096
    """K: keys of earlier images that are kept, the newest first."""
    momentum: Momentum = Momentum(start=0.99)
    """Of the teacher."""
    shuffle: bool = True
    """Whether keys are made of rows in another order."""

    def __post_init__(self):
        super().__post_init__()
        if self.queue < 1:
            raise ValueError(f"queue must be at least 1, got {self.queue}")

    def check(self, images: int, rows: int, size: tuple[int, int]) -> None:
        """Refuse a queue longer than the images, which would hold the keys of a row's own image, or than no batch."""
        super().check(images, rows, size)
        if not rows <= self.queue <= images - rows:
            raise ValueError(
                "a queue must hold a batch at least, and at most the images of all others, got "
                f"queue={self.queue}, {rows} rows of {images:,} images"
            )

    @property
    def carry(self) -> Carry:
        """The teacher and the queue."""

        def more(model: Any, key: PRNGKeyArray) -> dict[str, Array]:
            return {"queue": unit(jax.random.normal(key, (self.queue, model.width)))}

        return self.momentum.carry(more)

    def __call__(self, model: Any, batch: Batch, *, carried: Any, key: PRNGKeyArray | None = None) -> Taught:
        """Sum the loss over a batch; `accuracy` is how often the key scores above all of the queue."""
        keys, real = split_keys(key, 4), present(batch)
        views = self.crops(batch, keys[0])[0]
        query = unit(projected(model, views[:, :1], real, keys[1]))[:, 0]
        order = None if keys[3] is None or not self.shuffle else jax.random.permutation(keys[3], len(query))
        found = jax.lax.stop_gradient(made_keys(carried["teacher"], views[:, 1:], real, order, keys[2]))
        loss, metrics = self.over(query, found, carried["queue"], real)
        queue = jnp.concatenate([found, carried["queue"]])[: self.queue]
        return loss, metrics, {**carried, "queue": queue}

    def over(
        self, query: Float[Array, "B E"], key: Float[Array, "B E"], queue: Float[Array, "K E"], real: Bool[Array, " B"]
    ) -> Loss:
        """Sum the loss over rows, from vectors of length 1 (InfoNCE)."""
        own = jnp.sum(query * key, axis=1) / self.temperature
        others = constrain(query @ queue.T / self.temperature, "batch", None)
        losses = jax.nn.logsumexp(jnp.concatenate([own[:, None], others], axis=1), axis=1) - own
        right = jnp.sum(real & (own > others.max(axis=1)), dtype=jnp.float32)
        return jnp.sum(jnp.where(real, losses, 0.0)), {"count": _count(real), "accuracy": right}

    def held_out(self, model: Any, batch: Batch) -> dict[str, Any]:
        """Sum the loss of finding the key, by the model itself, among those of the batch."""
        real = present(batch)
        z = unit(projected(model, self.crops(batch, None)[0], real, None))
        loss, metrics = _among(z[:, 0], z[:, 1], self.temperature, real)
        return {"loss": loss, **metrics}


def made_keys(
    teacher: Any, views: Float[Array, "B 1 h w C"], real: Bool[Array, " B"], order: Array | None,
    key: PRNGKeyArray | None,
) -> Float[Array, "B E"]:  # fmt: skip
    """Project one view of each row to vectors of length 1, made in another order and put back."""
    if order is None:
        return unit(projected(teacher, views, real, key))[:, 0]
    return unit(projected(teacher, views[order], real[order], key))[jnp.argsort(order), 0]


@frozen
class MoCoV3Loss(PredictedViews, ContrastOfViews):
    """Sum over rows the cross-entropy of finding the key of one view by the prediction of another, among those of the
    batch, both ways, times twice the temperature (MoCo v3, Chen et al. 2021, https://arxiv.org/abs/2104.02057).

    Keys are made by a teacher without a predictor, the moving average of the model.
    """

    momentum: Momentum = Momentum(start=0.99)
    """Of the teacher."""

    def over(self, predicted: Float[Array, "B 2 E"], taught: Float[Array, "B 2 E"], real: Bool[Array, " B"]) -> Loss:
        """Sum the loss over rows; `accuracy` is how often the key scores above all others."""
        queries, keys = unit(predicted), unit(taught)
        ways = [_among(queries[:, i], keys[:, 1 - i], self.temperature, real) for i in (0, 1)]
        total = 2 * self.temperature * sum(loss for loss, _ in ways)
        right = sum(metrics["accuracy"] for _, metrics in ways) / 2
        return total, {"count": _count(real), "accuracy": right}


def _among(query: Float[Array, "B E"], key: Float[Array, "B E"], temperature: float, real: Bool[Array, " B"]) -> Loss:
    scores = constrain(query @ key.T / temperature, "batch", None)
    shown = jnp.where(real, scores, -jnp.inf)
    right = jnp.sum(real & is_first(jnp.diagonal(scores), shown), dtype=jnp.float32)
    return sum_cross_entropy(scores, real, real), {"count": _count(real), "accuracy": right}


def _count(real: Bool[Array, " B"]) -> Float[Array, ""]:
    return jnp.sum(real, dtype=jnp.float32)
