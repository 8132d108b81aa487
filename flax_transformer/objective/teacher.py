"""Teachers that are the moving average of what is trained, beside other state, and objectives that have views.

Axes: B rows, V views, E width of projections.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.objective.objective import Batch, Loss, Objective
from flax_transformer.objective.views import Views, fold, row_keys, unfold
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.parallel import constrain
from flax_transformer.train.carry import Carry


@frozen
class Momentum:
    """How slowly a teacher follows: θ' ← m · θ' + (1 − m) · θ after every step, m constant or rising to 1."""

    start: float = 0.996
    """m of the first step."""
    steps: int = 0
    """Steps in which m rises to 1 by half a cosine (Grill et al. 2020, §3.2); 0: it stays."""

    def __post_init__(self):
        if not 0 <= self.start <= 1 or self.steps < 0:
            raise ValueError(f"momentum must be in [0, 1] and its steps at least 0, got {self.start} and {self.steps}")

    def at(self, step: Array) -> Array:
        """Return m of a step."""
        if not self.steps:
            return jnp.float32(self.start)
        done = jnp.minimum(step.astype(jnp.float32) / self.steps, 1.0)
        return 1.0 - (1.0 - self.start) * (jnp.cos(jnp.pi * done) + 1.0) / 2.0

    def averaged(self, teacher: Any, model: Any, step: Array) -> Any:
        """Return the teacher after a step; what is no float is the model's."""
        keep = self.at(step)

        def blend(old: Array, new: Array) -> Array:
            if not jnp.issubdtype(new.dtype, jnp.floating):
                return new
            return old + ((1.0 - keep) * (new - old)).astype(old.dtype)

        return jax.tree.map(blend, teacher, model)

    def carry(
        self,
        more: Callable[[Any, PRNGKeyArray], Mapping[str, Any]] = lambda model, key: {},
        after: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda carried: carried,
        **whole: Any,
    ) -> Carry:
        """Carry `teacher`, which begins as the model, the number of the `step`, and what `more` begins with.

        Args:
          after: changes what is carried, but the teacher and the step, once a step.
          whole: as `Carry`'s.
        """

        def begin(model: Any, key: PRNGKeyArray) -> dict[str, Any]:
            return {"teacher": model, "step": jnp.zeros((), jnp.int32), **more(model, key)}

        def step(model: Any, carried: Mapping[str, Any]) -> dict[str, Any]:
            teacher = self.averaged(carried["teacher"], model, carried["step"])
            return {**after(carried), "teacher": teacher, "step": carried["step"] + 1}

        return Carry(begin=begin, after=step, **whole)


@frozen
class ViewObjective(Objective):
    """Compare views of images, which are made of `inputs["images"]` on the device; labels are not looked at.

    A batch has `images` [B, H, W, C] and `weights` [B]. The model gives the hidden states of a view, the vector of it
    (`features`), and what is compared of that (`project`, `predict`). In evaluation the views of an image are always
    the same.
    """

    views: Views = Views()
    """How views are made."""

    least: ClassVar[int] = 2
    """Views that are needed at least."""
    most: ClassVar[int | None] = 2
    """Large crops that can be compared at most."""

    def __post_init__(self):
        count, name = self.views.count + self.views.local, type(self).__name__
        if count < self.least:
            raise ValueError(f"{name} compares at least {self.least} views of an image, got {count}")
        if self.most is not None and (self.views.count > self.most or self.views.local):
            raise ValueError(
                f"{name} compares {self.most} large crops of an image, got {self.views.count} and {self.views.local} "
                "small ones"
            )

    def check(self, images: int, rows: int, size: tuple[int, int]) -> None:
        """Refuse data that cannot be learned from, before anything is trained.

        Args:
          images: how many there are to train on.
          rows: of a batch.
          size: height and width of images.

        Raises:
          ValueError: crops larger than images, or what a subclass needs.
        """
        self.views.check(*size)

    def crops(self, batch: Batch, key: PRNGKeyArray | None) -> tuple[Float[Array, "B V h w C"], ...]:
        """Return the views of a batch; without a key, those by which it is evaluated."""
        images = jnp.asarray(batch["inputs"]["images"])
        if key is not None:
            return self.views(images, key)

        def one(image: Array, key: PRNGKeyArray) -> tuple[Array, ...]:
            return tuple(each[0] for each in self.views(image[None], key))

        return jax.vmap(one)(images, row_keys(images, None))


def present(batch: Batch) -> Bool[Array, " B"]:
    """Return which rows are there."""
    return batch["weights"] > 0


def encode(model: Any, views: Float[Array, "B V h w C"], key: PRNGKeyArray | None, **given: Any) -> Array:
    """Return the hidden states of all views [B, V, T, D]."""
    masked = {name: fold(each) for name, each in given.items()}
    return unfold(model.hidden_states(images=fold(views), **masked, key=key), len(views))


def projected(
    model: Any, views: Float[Array, "B V h w C"], real: Bool[Array, " B"], key: PRNGKeyArray | None
) -> Float[Array, "B V E"]:
    """Encode and project all views of each row."""
    z = model.project(model.features(encode(model, views, key)), real)
    return constrain(z, "batch", None, None)


Taught = tuple[Array, dict[str, Any], dict[str, Any]]
"""Loss, metrics, and what is carried on."""


@frozen
class PredictedViews(ViewObjective):
    """Compare the prediction from each of two views with a teacher's projection of the other; the teacher is the moving
    average of the model, and has no predictor. A subclass says how, in `over`."""

    momentum: Momentum = Momentum()
    """Of the teacher."""

    separable: ClassVar[bool] = False
    unit: ClassVar[str] = "images"

    @property
    def carry(self) -> Carry:
        """The teacher."""
        return self.momentum.carry()

    def over(self, predicted: Float[Array, "B 2 E"], taught: Float[Array, "B 2 E"], real: Bool[Array, " B"]) -> Loss:
        """Sum the loss over rows, from predictions and what the teacher gives."""
        raise NotImplementedError

    def __call__(self, model: Any, batch: Batch, *, carried: Any, key: PRNGKeyArray | None = None) -> Taught:
        """Sum the loss over a batch."""
        keys = split_keys(key, 3)
        return *self._taught(model, carried["teacher"], batch, self.crops(batch, keys[0])[0], keys[1:]), carried

    def _taught(self, model: Any, teacher: Any, batch: Batch, views: Array, keys: Any) -> Loss:
        real = present(batch)
        predicted = model.predict(projected(model, views, real, keys[0]), real)
        return self.over(predicted, jax.lax.stop_gradient(projected(teacher, views, real, keys[1])), real)

    def held_out(self, model: Any, batch: Batch) -> dict[str, Any]:
        """Sum the loss with the model itself for the teacher."""
        loss, metrics = self._taught(model, model, batch, self.crops(batch, None)[0], (None, None))
        return {"loss": loss, **metrics}
