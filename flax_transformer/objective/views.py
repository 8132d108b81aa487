"""Views: several random crops of one image, each changed at random, made on the device within the training step.

What is drawn is drawn for the rows of the whole batch by one key, so that it is the same on any number of devices and
processes, and again when a run is resumed.

Axes: B images, V views, H W height and width in pixels, C channels, P patches.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Shaped

from flax_transformer.frozen import frozen
from flax_transformer.ops import image_transform
from flax_transformer.ops.row_random import drawn, keys_of_rows
from flax_transformer.parallel import constrain

Images = Float[Array, "B H W C"]


def check_probability(name: str, value: float) -> None:
    """Check that a value is in [0, 1]; raise ValueError if not."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {value}")


@frozen
class ViewChange:
    """What is changed in a view at random after it is cropped, as in SimCLR and BYOL (Grill et al. 2020)."""

    flip: float = 0.5
    """Probability of being mirrored."""
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.2, 0.1)
    """How much brightness, contrast and saturation change, factors of 1 ± these, and hue, ± this part of a turn; in
    this order."""
    jitter_share: float = 0.8
    """Probability that they change."""
    grey: float = 0.2
    """Probability of being grey."""
    blur: float = 0.5
    """Probability of being blurred."""
    sigma: tuple[float, float] = (0.1, 2.0)
    """The least and the greatest standard deviation of the blur, in pixels."""
    solarise: float = 0.0
    """Probability that what is bright is inverted."""

    def __post_init__(self):
        for name in ("flip", "jitter_share", "grey", "blur", "solarise"):
            check_probability(name, getattr(self, name))
        if min(self.jitter) < 0 or max(self.jitter[:3]) > 1 or self.jitter[3] > 0.5:
            raise ValueError(f"jitter must be at least 0, at most 1 and of hue at most 0.5, got {self.jitter}")
        if not 0 < self.sigma[0] <= self.sigma[1]:
            raise ValueError(f"sigma must be a positive range, got {self.sigma}")

    def __call__(self, images: Images, key: PRNGKeyArray) -> Images:
        """Change images, whose values are between 0 and 1."""
        keys = iter(jax.random.split(key, 10))
        images = image_transform.flip(images, _chance(next(keys), len(images), self.flip))
        steps = (image_transform.brighten, image_transform.contrast, image_transform.saturate)
        changed = images
        for step, strength in zip(steps, self.jitter, strict=False):
            factor = _uniform(next(keys), len(images), 1 - strength, 1 + strength)
            changed = step(changed, factor) if strength else changed
        turn = _uniform(next(keys), len(images), -self.jitter[3], self.jitter[3])
        changed = image_transform.turn_hue(changed, turn) if self.jitter[3] else changed
        images = image_transform.where(_chance(next(keys), len(images), self.jitter_share), changed, images)
        images = image_transform.where(
            _chance(next(keys), len(images), self.grey), image_transform.grey(images), images
        )
        which, sigma = _chance(next(keys), len(images), self.blur), _uniform(next(keys), len(images), *self.sigma)
        if self.blur:
            images = image_transform.where(
                which, image_transform.blur(images, sigma, image_transform.blur_width(images.shape[1])), images
            )
        which = _chance(next(keys), len(images), self.solarise)
        return image_transform.where(which, image_transform.solarise(images), images) if self.solarise else images


PLAIN = ViewChange(jitter=(0.0, 0.0, 0.0, 0.0), jitter_share=0.0, grey=0.0, blur=0.0)
"""Mirrored and no more, as masked autoencoders have it."""
BYOL_CHANGES = (ViewChange(blur=1.0), ViewChange(blur=0.1, solarise=0.2))
"""Of the two views of BYOL, MoCo v3 and DINO (Grill et al. 2020, table 6)."""


@frozen
class Views:
    """Random resized crops of each image, `count` large ones and `local` small ones, changed at random.

    Images come and go normalised, by `mean` and `std`, which the data say. Without a key every view is the whole image,
    resized.
    """

    count: int = 2
    """Large crops of an image."""
    size: int | None = None
    """Pixels of both of their sides; None: as the images have."""
    area: tuple[float, float] = (0.2, 1.0)
    """The least and the greatest part of the image's area that one takes."""
    local: int = 0
    """Small crops of an image (multi-crop, Caron et al. 2020)."""
    local_size: int = 16
    """Pixels of both of their sides."""
    local_area: tuple[float, float] = (0.05, 0.4)
    """The least and the greatest part of the area that one takes."""
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    """The least and the greatest width over height of a crop."""
    changes: tuple[ViewChange, ...] = (ViewChange(),)
    """What is changed: of the first large crop by the first, and so on, again and again; of small ones by the last."""
    mean: tuple[float, ...] = (0.5,)
    """What images are normalised by: the mean of each channel, or of all; the data's, whatever stands here."""
    std: tuple[float, ...] = (0.5,)
    """And the standard deviation."""

    def __post_init__(self):
        if self.count < 1 or self.local < 0 or min(self.size or 1, self.local_size) < 1 or not self.changes:
            raise ValueError(
                "views are at least 1 large crop, 0 small ones, of at least 1 pixel, with a change, got "
                f"{self.count}, {self.local}, {self.size}, {self.local_size}, {len(self.changes)} changes"
            )
        for name in ("area", "local_area", "aspect"):
            low, high = getattr(self, name)
            if not 0 < low <= high or (name != "aspect" and high > 1):
                raise ValueError(f"{name} must be a positive range, of areas up to 1, got {low} to {high}")

    def check(self, height: int, width: int) -> None:
        """Refuse crops that are larger than images.

        Raises:
          ValueError: one.
        """
        sizes = {"size": self.size or 0, **({"local_size": self.local_size} if self.local else {})}
        for name, size in sizes.items():
            if size > min(height, width):
                raise ValueError(f"crops must not be larger than images, got {name}={size}, images of {height}×{width}")

    def __call__(self, images: Images, key: PRNGKeyArray | None) -> tuple[Float[Array, "B V h w C"], ...]:
        """Return the large crops, and the small ones where there are some."""
        size = images.shape[1:3] if self.size is None else (self.size, self.size)
        changes = [self.changes[i % len(self.changes)] for i in range(self.count)]
        keys = (None, None) if key is None else jax.random.split(key)
        found = [self._crops(images, keys[0], size, self.area, changes)]
        if self.local:
            small, changes = (self.local_size, self.local_size), [self.changes[-1]] * self.local
            found.append(self._crops(images, keys[1], small, self.local_area, changes))
        return tuple(found)

    def _crops(
        self, images: Images, key: PRNGKeyArray | None, size: tuple[int, int], area: tuple[float, float], changes: list
    ) -> Float[Array, "B V h w C"]:
        mean, std = (jnp.array(each, images.dtype) for each in (self.mean, self.std))
        pixels, made = images * std + mean, []
        for number, change in enumerate(changes):
            if key is None:
                whole = jnp.broadcast_to(jnp.array([0.0, 0.0, 1.0, 1.0], images.dtype), (len(images), 4))
                made.append(image_transform.crop_resize(pixels, whole, size))
                continue
            keys = jax.random.split(jax.random.fold_in(key, number))
            boxes = crop_boxes(keys[0], len(images), area, self.aspect)
            made.append(change(jnp.clip(image_transform.crop_resize(pixels, boxes, size), 0.0, 1.0), keys[1]))
        return constrain((jnp.stack(made, axis=1) - mean) / std, "batch", None, None, None, None)


def crop_boxes(
    key: PRNGKeyArray, count: int, area: tuple[float, float], aspect: tuple[float, float]
) -> Float[Array, "B 4"]:
    """Draw boxes within images: top, left, height and width as fractions, uniform in area, log-uniform in shape.

    A side that would be longer than the image's is cut to it.
    """
    keys = jax.random.split(key, 4)
    areas = _uniform(keys[0], count, *area)
    shapes = jnp.exp(_uniform(keys[1], count, *map(math.log, aspect)))
    height, width = (jnp.minimum(jnp.sqrt(each), 1.0) for each in (areas / shapes, areas * shapes))
    top, left = ((1 - side) * _uniform(k, count) for side, k in ((height, keys[2]), (width, keys[3])))
    return jnp.stack([top, left, height, width], axis=1)


def row_keys(images: Shaped[Array, "B ..."], key: PRNGKeyArray | None) -> Shaped[Array, " B"]:
    """Return a key for each row: of a key its own, without one a key of the image's bits.

    So a held-out image has the same draws wherever it stands, in a batch of any size.
    """
    if key is not None:
        return jax.random.split(key, len(images))
    return keys_of_rows(images)


def patch_noise(images: Shaped[Array, "B ..."], patches: int, key: PRNGKeyArray | None) -> Float[Array, "B P"]:
    """Draw a number between 0 and 1 for every patch of every image; without a key by the images themselves."""
    if key is not None:
        return drawn(lambda shape: jax.random.uniform(key, shape), (len(images), patches))
    return jax.vmap(lambda each: jax.random.uniform(each, (patches,)))(row_keys(images, None))


def masked_patches(noise: Float[Array, "B P"], count: int | Array) -> Bool[Array, "B P"]:
    """Return masks of the so many patches with the least noise."""
    return jnp.argsort(jnp.argsort(noise, axis=1), axis=1) < jnp.reshape(count, (-1, 1))


def _uniform(key: PRNGKeyArray, count: int, low: float = 0.0, high: float = 1.0) -> Float[Array, " B"]:
    return drawn(lambda shape: jax.random.uniform(key, shape, minval=low, maxval=high), (count,))


def _chance(key: PRNGKeyArray, count: int, probability: float) -> Bool[Array, " B"]:
    return _uniform(key, count) < probability


def fold(views: Any) -> Any:
    """Put the views of all images in one axis, an image's beside each other: [B, V, …] to [B·V, …]."""
    return views.reshape(views.shape[0] * views.shape[1], *views.shape[2:])


def unfold(rows: Any, images: int) -> Any:
    """Part what `fold` has put together: [B·V, …] to [B, V, …]."""
    return rows.reshape(images, -1, *rows.shape[1:])
