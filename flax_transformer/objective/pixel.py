"""Masked images: the pixels of patches that the model does not see.

Axes: B rows, H W height and width in pixels, C channels, P patches, X values of a patch.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.objective.objective import Batch, Loss
from flax_transformer.objective.teacher import ViewObjective
from flax_transformer.objective.views import PLAIN, Views, masked_patches, patch_noise
from flax_transformer.ops import widen
from flax_transformer.ops.split_keys import split_keys

CROP = Views(count=1, area=(0.2, 1.0), changes=(PLAIN,))


@frozen
class MaskedPixels(ViewObjective):
    """What both have in common: a crop of each image, of which patches are masked."""

    views: Views = CROP
    """The crop that is masked."""

    least: ClassVar[int] = 1
    most: ClassVar[int | None] = 1
    unit: ClassVar[str] = "images"

    def crop(self, batch: Batch, key: PRNGKeyArray | None) -> Float[Array, "B H W C"]:
        """Return a crop of each image; without a key the image."""
        images = jnp.asarray(batch["inputs"]["images"])
        return images if key is None else self.views(images, key)[0][:, 0]


@frozen
class MAELoss(MaskedPixels):
    """Sum over rows the mean squared error of the pixels of masked patches (He et al. 2021,
    https://arxiv.org/abs/2111.06377).

    The model is an `MAE`, whose `mask_ratio` says how many are masked.
    """

    normalise: bool = True
    """Whether the pixels of each patch have mean 0 and variance 1."""

    def __call__(self, model: Any, batch: Batch, *, key: PRNGKeyArray | None = None) -> Loss:
        """Sum the loss over a batch."""
        keys = split_keys(key, 3)
        images = self.crop(batch, keys[0])
        patch = model.cfg.encoder.patches.patch
        truth = patch_pixels(images, patch)
        noise = patch_noise(images, truth.shape[1], keys[1])
        encoded = model.encode(images, noise, key=keys[2])
        return self.over(model.output(model.decode(encoded)), truth, encoded.masked, batch["weights"])

    def over(
        self, found: Float[Array, "B P X"], truth: Float[Array, "B P X"], masked: Bool[Array, "B P"],
        weights: Float[Array, " B"],
    ) -> Loss:  # fmt: skip
        """Sum the loss over rows, from the pixels of all patches."""
        if self.normalise:
            mean, var = truth.mean(-1, keepdims=True), truth.var(-1, ddof=1, keepdims=True)
            truth = (truth - mean) * jax.lax.rsqrt(var + 1e-6)
        errors = jnp.square(widen(found) - truth).mean(axis=-1)
        each = jnp.sum(errors * masked, axis=1) / jnp.maximum(masked.sum(axis=1), 1)
        return jnp.sum(jnp.where(weights > 0, each * weights, 0.0)), {"count": weights.sum()}


@frozen
class SimMIMLoss(MaskedPixels):
    """Sum over rows the mean absolute error of the pixels of masked patches, which the encoder sees as a mask token
    (Xie et al. 2021, https://arxiv.org/abs/2111.09886).

    The model is a `Restorer` of an encoder with a mask token.
    """

    mask_ratio: float = 0.6
    """How many of the patches are masked."""

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.mask_ratio < 1:
            raise ValueError(f"mask_ratio must be in (0, 1), got {self.mask_ratio}")

    def __call__(self, model: Any, batch: Batch, *, key: PRNGKeyArray | None = None) -> Loss:
        """Sum the loss over a batch."""
        keys = split_keys(key, 3)
        images = self.crop(batch, keys[0])
        patch = model.cfg.backbone.patches.patch
        rows, columns = (side // each for side, each in zip(images.shape[1:3], patch, strict=True))
        noise = patch_noise(images, rows * columns, keys[1])
        masked = masked_patches(noise, max(round(self.mask_ratio * rows * columns), 1))
        found = model.output(model.hidden_states(images, masked=masked, key=keys[2]))
        hidden = masked.reshape(-1, rows, columns).repeat(patch[0], axis=1).repeat(patch[1], axis=2)
        errors = jnp.abs(widen(found) - images).mean(axis=-1) * hidden
        each, weights = errors.sum(axis=(1, 2)) / hidden.sum(axis=(1, 2)), batch["weights"]
        return jnp.sum(jnp.where(weights > 0, each * weights, 0.0)), {"count": weights.sum()}


def patch_pixels(images: Float[Array, "B H W C"], patch: tuple[int, int]) -> Float[Array, "B P X"]:
    """Return the pixels of every patch, [height, width, C] each, flat."""
    B, H, W, C = images.shape
    high, wide = patch
    x = images[:, : H // high * high, : W // wide * wide].reshape(B, H // high, high, W // wide, wide, C)
    return x.swapaxes(2, 3).reshape(B, -1, high * wide * C)
