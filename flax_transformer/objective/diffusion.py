"""Learning to take noise away: denoising of a variance-preserving process, and matching the velocity of a flow.

A batch has clean images and, as labels, their classes. The model predicts as `model(images, times, classes)`.

Axes: B rows, H W height and width, C channels.
"""

from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flax_transformer.decode.diffusion import DDIM, Euler, Sampler
from flax_transformer.frozen import frozen
from flax_transformer.nn.config import check_rates
from flax_transformer.objective.objective import Batch, Loss, Objective
from flax_transformer.ops import widen
from flax_transformer.ops.diffusion import (
    SCALE,
    NoiseSchedule,
    Predicts,
    add_noise,
    noise_target,
    over,
)
from flax_transformer.ops.row_random import drawn, keys_of_rows
from flax_transformer.ops.split_keys import split_keys


class Noised(NamedTuple):
    """Images with noise, and what is to be predicted of them."""

    images: Float[Array, "B H W C"]
    times: Float[Array, "B"]
    """As the model is given them."""
    target: Float[Array, "B H W C"]


@frozen
class DiffusionLoss(Objective):
    """Sum the squared error of a prediction, a mean over each image, at one random time of each.

    Without a key each image draws by its own pixels, so that held-out losses are the same in any batch.
    """

    label_dropout: float = 0.1
    """How often a class is replaced by that of none in training, for classifier-free guidance."""

    unit: ClassVar[str] = "images"

    def __post_init__(self):
        check_rates(self, "label_dropout")

    def noised(
        self, images: Float[Array, "B H W C"], uniform: Float[Array, "B"], noise: Float[Array, "B H W C"]
    ) -> Noised:
        """Return images with noise.

        Args:
          uniform: what times are drawn by, between 0 and 1.
          noise: normal.
        """
        raise NotImplementedError

    def sampler(self, steps: int) -> Sampler:
        """Return how a model that was trained by this makes images.

        Args:
          steps: calls of the model.
        """
        raise NotImplementedError

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over the images of a batch; a variance that is predicted beside is not trained, nor used."""
        images, weights, labels = (
            widen(jnp.asarray(batch["inputs"]["images"])),
            batch["weights"],
            jnp.asarray(batch["labels"]),
        )
        keys = split_keys(key, 3)
        noised = self.noised(images, *_draws(images, keys[0]))
        classes = self._classes(model, labels, keys[1])
        found = widen(model(noised.images, noised.times, classes, key=keys[2]))[..., : images.shape[-1]]
        error = jnp.mean(jnp.square(found - noised.target), axis=(1, 2, 3))
        return jnp.sum(error * weights), {"count": jnp.sum(weights)}

    def _classes(self, model: Any, labels: Int[Array, "B"], key: Any) -> Int[Array, "B"] | None:
        """Return the classes that the model is told."""
        if not model.cfg.classes:
            return None
        if key is None or not self.label_dropout:
            return labels
        dropped = drawn(lambda shape: jax.random.uniform(key, shape) < self.label_dropout, labels.shape)
        return jnp.where(dropped, model.cfg.null, labels)


def _draws(images: Float[Array, "B H W C"], key: Any) -> tuple[Float[Array, "B"], Float[Array, "B H W C"]]:
    """Draw a uniform number and noise for each image: by a key, or without one by the image itself."""
    if key is not None:
        one, two = jax.random.split(key)
        uniform = drawn(partial(jax.random.uniform, one), images.shape[:1])
        return uniform, drawn(partial(jax.random.normal, two), images.shape)

    def of_row(key: Any) -> tuple[Array, Array]:
        one, two = jax.random.split(key)
        return jax.random.uniform(one), jax.random.normal(two, images.shape[1:])

    return jax.vmap(of_row)(keys_of_rows(images))


@frozen
class DenoisingLoss(DiffusionLoss):
    """Denoising diffusion by the simple loss (Ho et al. 2020, https://arxiv.org/abs/2006.11239, §3.4)."""

    schedule: NoiseSchedule = NoiseSchedule()
    """How much noise there is at each time."""
    predicts: Predicts = "epsilon"
    """What the model predicts: the noise, the velocity, or the image."""
    clip: float | None = 1.0
    """Largest absolute value of what samplers take the image to be; None where images are latents."""

    def noised(
        self, images: Float[Array, "B H W C"], uniform: Float[Array, "B"], noise: Float[Array, "B H W C"]
    ) -> Noised:
        """Return images with noise, each at one of the T times."""
        times = jnp.minimum((uniform * self.schedule.steps).astype(jnp.int32), self.schedule.steps - 1)
        signal = jnp.asarray(self.schedule.signal(), images.dtype)[times]
        target = noise_target(self.predicts, images, noise, signal)
        return Noised(add_noise(images, noise, signal), times.astype(images.dtype), target)

    def sampler(self, steps: int) -> DDIM:
        """Return DDIM by the same schedule."""
        return DDIM(steps=steps, schedule=self.schedule, predicts=self.predicts, clip=self.clip)


@frozen
class FlowMatchingLoss(DiffusionLoss):
    """Flow matching on straight paths (Lipman et al. 2022, https://arxiv.org/abs/2210.02747; rectified flow, Liu et al.
    2022): the model predicts the velocity ε − x_0."""

    times: Literal["logit_normal", "uniform"] = "logit_normal"
    """How times are drawn: the sigmoid of a normal number, in the middle more often (Esser et al. 2024,
    https://arxiv.org/abs/2403.03206), or uniform."""

    def __post_init__(self):
        super().__post_init__()
        if self.times not in ("logit_normal", "uniform"):
            raise ValueError(f"times must be logit_normal or uniform, got {self.times!r}")

    def noised(
        self, images: Float[Array, "B H W C"], uniform: Float[Array, "B"], noise: Float[Array, "B H W C"]
    ) -> Noised:
        """Return images with noise, each at a time between 0 and 1."""
        times = uniform
        if self.times == "logit_normal":
            edge = float(jnp.finfo(uniform.dtype).eps)
            times = jax.nn.sigmoid(jax.scipy.special.ndtri(jnp.clip(uniform, edge, 1 - edge)))
        t = over(times, images)
        return Noised((1 - t) * images + t * noise, times * SCALE, noise - images)

    def sampler(self, steps: int) -> Euler:
        """Return Euler's method."""
        return Euler(steps=steps)
