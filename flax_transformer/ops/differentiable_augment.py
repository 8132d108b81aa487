"""Differentiable changes of images, the same for real and generated ones, so that a critic does not learn few images by
heart (Zhao et al. 2020, https://arxiv.org/abs/2006.10738).

Axes: B images, H W height and width in pixels, C channels.
"""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

Image = Float[Array, "H W C"]


def _colour(image: Image, key: PRNGKeyArray) -> Image:
    """Change brightness, saturation and contrast, in this order."""
    bright, saturated, contrast = jax.random.uniform(key, (3,), image.dtype)
    image = image + (bright - 0.5)
    grey = image.mean(axis=-1, keepdims=True)
    image = (image - grey) * (2 * saturated) + grey
    mean = image.mean()
    return (image - mean) * (contrast + 0.5) + mean


def _translation(image: Image, key: PRNGKeyArray, share: float = 0.125) -> Image:
    """Move an image by up to an eighth of its sides, zeros coming in."""
    sides = image.shape[:2]
    most = [int(side * share + 0.5) for side in sides]
    padded = jnp.pad(image, [(each, each) for each in most] + [(0, 0)])
    starts = [jax.random.randint(k, (), 0, 2 * m + 1) for k, m in zip(jax.random.split(key), most, strict=True)]
    return jax.lax.dynamic_slice(padded, (*starts, 0), image.shape)


def _cutout(image: Image, key: PRNGKeyArray, share: float = 0.5) -> Image:
    """Put zeros into a rectangle half as high and wide, which may reach beyond the edge."""
    inside = []
    for side, each in zip(image.shape[:2], jax.random.split(key), strict=True):
        size = int(side * share + 0.5)
        centre = jax.random.randint(each, (), 0, side + (1 - size % 2))
        place = jnp.arange(side)
        inside.append((place >= centre - size // 2) & (place < centre - size // 2 + size))
    return jnp.where(inside[0][:, None, None] & inside[1][None, :, None], 0, image)


CHANGES: dict[str, Callable[[Image, PRNGKeyArray], Image]] = {
    "colour": _colour,
    "translation": _translation,
    "cutout": _cutout,
}


def differentiable_augment(
    images: Float[Array, "B H W C"], key: PRNGKeyArray, changes: Sequence[str] = tuple(CHANGES)
) -> Float[Array, "B H W C"]:
    """Change every image at random, each by itself, so that gradients come through.

    What is drawn for row i depends on the key and i alone, whatever else is in the batch.

    Args:
      images: with values around 0, as between -1 and 1.
      changes: of `colour`, `translation` and `cutout`, in the order in which they are made.

    Raises:
      ValueError: a change that there is not.
    """
    if unknown := [name for name in changes if name not in CHANGES]:
        raise ValueError(f"changes must be of {', '.join(CHANGES)}, got {', '.join(unknown)}")
    keys = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(len(images)))
    for number, name in enumerate(changes):
        images = jax.vmap(CHANGES[name])(images, jax.vmap(lambda k, n=number: jax.random.fold_in(k, n))(keys))
    return images
