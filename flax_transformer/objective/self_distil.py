"""Views of images, each predicted from others by a teacher that is the model's own average: BYOL, DINO, iBOT.

Axes: B rows, V views, T S views of the teacher and of the student, P patches, E width of projections.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.objective.objective import Batch, Loss
from flax_transformer.objective.teacher import (
    Momentum,
    PredictedViews,
    Taught,
    ViewObjective,
    encode,
    present,
    projected,
)
from flax_transformer.objective.views import check_probability, fold, masked_patches, patch_noise, unfold
from flax_transformer.ops.koleo import koleo
from flax_transformer.ops.norm import unit
from flax_transformer.ops.sinkhorn import sinkhorn
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.parallel import constrain
from flax_transformer.train.carry import Carry


@frozen
class BYOLLoss(PredictedViews):
    """Sum over rows the squared distance of the prediction from one view to the teacher's projection of the other, of
    vectors of length 1, both ways (Grill et al. 2020, https://arxiv.org/abs/2006.07733).

    It compares no rows, but its projector and predictor usually normalise by the batch, which is therefore never cut.
    """

    momentum: Momentum = Momentum(start=0.996)
    """Of the teacher."""

    def over(self, predicted: Float[Array, "B 2 E"], taught: Float[Array, "B 2 E"], real: Bool[Array, " B"]) -> Loss:
        """Sum the loss over rows, from predictions and what they are to be."""
        cosines = jnp.sum(unit(predicted) * unit(taught)[:, ::-1], axis=-1)
        losses = jnp.sum(2.0 - 2.0 * cosines, axis=1)
        return jnp.sum(jnp.where(real, losses, 0.0)), {"count": jnp.sum(real, dtype=jnp.float32)}


@frozen
class DINOLoss(ViewObjective):
    """Sum over rows the cross-entropy of a teacher's distribution over prototypes for a large crop and the student's
    for another view, the mean over all pairs of views (Caron et al. 2021, https://arxiv.org/abs/2104.14294).

    The teacher's scores have a moving mean taken away (centring) and a low temperature (sharpening), which together
    keep it from collapse. The teacher is what is evaluated and exported. Parts of a batch give what the whole does, as
    the mean moves once a step; not by Sinkhorn-Knopp or with KoLeo (DINOv2), which compare rows.
    """

    temperature: float = 0.1
    """What the student's scores are divided by."""
    teacher_temperature: float = 0.04
    """What the teacher's are divided by, after the warmup."""
    warmup_temperature: float = 0.04
    """What they are divided by in the first step."""
    warmup_steps: int = 0
    """Steps in which that becomes this, linearly."""
    centre_momentum: float = 0.9
    """How much of the mean of scores is kept in each step."""
    momentum: Momentum = Momentum(start=0.996)
    """Of the teacher."""
    centring: Literal["mean", "sinkhorn"] = "mean"
    """How prototypes are kept in use: a moving `mean` is taken from the teacher's scores, or those of the batch are
    assigned to all prototypes alike (`sinkhorn`, three steps)."""
    koleo: float = 0.0
    """Weight of what keeps the vectors of the student's large crops apart, of each crop by itself; DINOv2 has 0.1."""

    most: ClassVar[int | None] = None
    unit: ClassVar[str] = "images"
    centres: ClassVar[tuple[str, ...]] = ("centre",)

    def __post_init__(self):
        super().__post_init__()
        temperatures = self.temperature, self.teacher_temperature, self.warmup_temperature
        if min(temperatures) <= 0 or self.warmup_steps < 0:
            raise ValueError(
                f"temperatures must be positive, warmup at least 0, got {temperatures}, {self.warmup_steps}"
            )
        check_probability("centre_momentum", self.centre_momentum)
        if self.koleo < 0:
            raise ValueError(f"koleo must not be negative, got {self.koleo}")

    @property
    def separable(self) -> bool:
        """Whether no row is compared with others."""
        return self.centring == "mean" and not self.koleo

    @property
    def carry(self) -> Carry:
        """The teacher, the mean of its scores, and their sum over the batch so far."""

        def more(model: Any, key: PRNGKeyArray) -> dict[str, Array]:
            zeros = {name: jnp.zeros(model.width) for name in self.centres}
            return {**zeros, **{f"{name}_sum": each for name, each in zeros.items()}, "rows": jnp.zeros(())}

        def after(carried: Mapping[str, Any]) -> dict[str, Any]:
            found, rows = dict(carried), jnp.maximum(carried["rows"], 1.0)
            for name in self.centres:
                mean, keep = carried[f"{name}_sum"] / rows, self.centre_momentum
                found[name] = keep * carried[name] + (1 - keep) * mean
                found[f"{name}_sum"] = jnp.zeros_like(mean)
            return {**found, "rows": jnp.zeros_like(carried["rows"])}

        return self.momentum.carry(more, after, whole=lambda model, carried: carried["teacher"])

    def sharpness(self, step: Array) -> Array:
        """Return the teacher's temperature of a step."""
        if not self.warmup_steps:
            return jnp.float32(self.teacher_temperature)
        done = jnp.minimum(step / self.warmup_steps, 1.0)
        return self.warmup_temperature + done * (self.teacher_temperature - self.warmup_temperature)

    def __call__(self, model: Any, batch: Batch, *, carried: Any, key: PRNGKeyArray | None = None) -> Taught:
        """Sum the loss over a batch."""
        keys, real = split_keys(key, 3), present(batch)
        views = self.crops(batch, keys[0])
        return self._taught(model, carried, views, real, keys[1:])

    def _taught(self, model: Any, carried: Any, views: Any, real: Bool[Array, " B"], keys: Any) -> Taught:
        taught = jax.lax.stop_gradient(projected(carried["teacher"], views[0], real, keys[1]))
        own = split_keys(keys[0], len(views))
        loss, metrics = self._matched(model, carried, encode(model, views[0], own[0]), views[1:], taught, real, own[1:])
        return loss, metrics, _added(carried, real, centre=taught)

    def _matched(
        self, model: Any, carried: Any, hidden: Array, small: Any, taught: Array, real: Bool[Array, " B"], keys: Any
    ) -> Loss:
        """Sum the loss over rows, from the student's hidden states of large crops, and the small ones."""
        features = model.features(hidden)
        others = [model.features(encode(model, each, k)) for each, k in zip(small, keys, strict=True)]
        # All crops at once: the gradient of a projector with many prototypes is then summed over devices once.
        scores = constrain(model.project(jnp.concatenate([features, *others], axis=1), real), "batch", None, None)
        loss, metrics = self.over(scores, taught, carried["centre"], carried["step"], real)
        if self.koleo:
            spread = sum(koleo(features[:, view], real).sum() for view in range(features.shape[1]))
            loss, metrics = loss + self.koleo * spread, {**metrics, "koleo": spread}
        return loss, metrics

    def answer(
        self, teacher: Float[Array, "*R E"], centre: Float[Array, " E"], step: Array, real: Bool[Array, "*R"]
    ) -> Float[Array, "*R E"]:
        """Return the teacher's distributions over prototypes; only what is `real` counts, where rows are compared."""
        if self.centring == "mean":
            return jax.nn.softmax((teacher - centre) / self.sharpness(step))
        scores = teacher.reshape(-1, teacher.shape[-1]) / self.sharpness(step)
        return sinkhorn(scores, real.reshape(-1)).reshape(teacher.shape)

    def over(
        self, student: Float[Array, "B S E"], teacher: Float[Array, "B T E"], centre: Float[Array, " E"], step: Array,
        real: Bool[Array, " B"],
    ) -> Loss:  # fmt: skip
        """Sum the loss over rows, from scores; the first views of the student are those of the teacher."""
        answer = self.answer(teacher, centre, step, jnp.broadcast_to(real[:, None], teacher.shape[:2]))
        predicted = jax.nn.log_softmax(student / self.temperature)
        pairs = -jnp.einsum("bte,bse->bts", answer, predicted)
        apart = ~jnp.eye(teacher.shape[1], student.shape[1], dtype=bool)
        losses = jnp.sum(jnp.where(apart, pairs, 0.0), axis=(1, 2)) / apart.sum()
        return jnp.sum(jnp.where(real, losses, 0.0)), {"count": jnp.sum(real, dtype=jnp.float32)}

    def held_out(self, model: Any, batch: Batch) -> dict[str, Any]:
        """Sum the loss with the model itself for the teacher, and nothing taken from its scores."""
        carried = self.carry.begin(model, jax.random.key(0))
        loss, metrics, _ = self._taught(model, carried, self.crops(batch, None), present(batch), (None, None))
        return {"loss": loss, **metrics}


def _added(carried: Mapping[str, Any], real: Bool[Array, " B"], **scores: Any) -> dict[str, Any]:
    """Add the means of scores of each row to the sums over the batch."""
    rows = real.astype(jnp.float32)
    sums = {f"{name}_sum": carried[f"{name}_sum"] + rows @ each.mean(axis=1) for name, each in scores.items()}
    return {**carried, **sums, "rows": carried["rows"] + rows.sum()}


@frozen
class IBOTLoss(DINOLoss):
    """Minimise DINO's loss, and for masked patches of the student's large crops the cross-entropy with what the teacher
    sees there, the mean over the patches of a crop (iBOT, Zhou et al. 2021, https://arxiv.org/abs/2111.07832; DINOv2).

    The encoder has a mask token. Patches are masked each by itself, at random.
    """

    masked: tuple[float, float] = (0.1, 0.5)
    """The least and the greatest part of the patches of a crop that are masked."""
    mask_share: float = 0.5
    """Probability that a crop has masked patches."""
    patch_weight: float = 1.0
    """What the loss of patches is multiplied by."""

    better: ClassVar[Mapping[str, str]] = {"loss": "lower", "patch_loss": "lower"}
    centres: ClassVar[tuple[str, ...]] = ("centre", "patch_centre")

    def __post_init__(self):
        super().__post_init__()
        check_probability("mask_share", self.mask_share)
        if not 0 < self.masked[0] <= self.masked[1] < 1 or self.patch_weight < 0:
            raise ValueError(
                f"masked must be a range in (0, 1), patch_weight at least 0, got {self.masked} and {self.patch_weight}"
            )

    def masks(self, crops: Float[Array, "B V h w C"], patches: int, key: PRNGKeyArray | None) -> Bool[Array, "B V P"]:
        """Draw which patches of each crop are masked."""
        images, keys = fold(crops), split_keys(key)
        noise, more = patch_noise(images, patches, keys[0]), patch_noise(1 - images, 2, keys[1])
        low, high = self.masked
        count = jnp.ceil((low + (high - low) * more[:, 0]) * patches)
        found = masked_patches(noise, count) & (more[:, 1] < self.mask_share)[:, None]
        return unfold(found, len(crops))

    def _taught(self, model: Any, carried: Any, views: Any, real: Bool[Array, " B"], keys: Any) -> Taught:
        teacher, large = carried["teacher"], views[0]
        own = split_keys(keys[0], len(views) + 1)
        shown = jax.lax.stop_gradient(encode(teacher, large, keys[1]))
        taught, patches = (
            teacher.project(teacher.features(shown), real),
            teacher.project_patches(teacher.patches(shown)),
        )
        masks = self.masks(large, patches.shape[2], own[-1])
        hidden = encode(model, large, own[0], masked=masks)
        taught, patches = (jax.lax.stop_gradient(each) for each in (taught, patches))
        whole, metrics = self._matched(model, carried, hidden, views[1:], taught, real, own[1:-1])
        seen = model.project_patches(model.patches(hidden))
        part = self.over_patches(seen, patches, carried["patch_centre"], carried["step"], masks, real)
        carried = _added(carried, real, centre=taught, patch_centre=patches.mean(axis=1))
        return whole + self.patch_weight * part, {**metrics, "patch_loss": part}, carried

    def over_patches(
        self, student: Float[Array, "B V P E"], teacher: Float[Array, "B V P E"], centre: Float[Array, " E"],
        step: Array, masks: Bool[Array, "B V P"], real: Bool[Array, " B"],
    ) -> Float[Array, ""]:  # fmt: skip
        """Sum over rows the loss of masked patches, the mean over those of a crop and over crops."""
        answer = self.answer(teacher, centre, step, masks & real[:, None, None])
        losses = -jnp.sum(answer * jax.nn.log_softmax(student / self.temperature), axis=-1)
        each = jnp.sum(jnp.where(masks, losses, 0.0), axis=2) / jnp.maximum(masks.sum(axis=2), 1)
        return jnp.sum(jnp.where(real, each.mean(axis=1), 0.0))
