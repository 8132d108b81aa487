"""Changes of images on the device: each row of a batch by numbers of its own, values between 0 and 1.

Pure functions of images and of the numbers that say how much; who draws these is somewhere else (`objective.Views`).

Axes: B images, H W height and width in pixels, C channels.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

Images = Float[Array, "B H W C"]
PerImage = Float[Array, " B"]

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grey (ITU-R BT.601), as Pillow and torchvision have them."""


def crop_resize(images: Images, boxes: Float[Array, "B 4"], size: tuple[int, int]) -> Float[Array, "B h w C"]:
    """Cut a box out of each image and resize it, linear in between, averaged where it shrinks.

    Args:
      boxes: top, left, height and width, as fractions of the image's.
      size: height and width of the result, in pixels.
    """
    high, wide = images.shape[1:3]
    scale = jnp.array(size, images.dtype) / (boxes[:, 2:] * jnp.array([high, wide], images.dtype))
    shift = -boxes[:, :2] * jnp.array([high, wide], images.dtype) * scale

    def one(image: Array, scale: Array, shift: Array) -> Array:
        shape = (*size, image.shape[-1])
        return jax.image.scale_and_translate(image, shape, (0, 1), scale, shift, method="linear", antialias=True)

    return jax.vmap(one)(images, scale, shift)


def flip(images: Images, which: Bool[Array, " B"]) -> Images:
    """Mirror some images, left to right."""
    return _chosen(which, images[:, :, ::-1], images)


def grey(images: Images) -> Images:
    """Return images of as many channels whose colours are all their luma; grey ones as they are."""
    if images.shape[-1] != 3:
        return images
    luma = jnp.tensordot(images, jnp.array(LUMA, images.dtype), 1)
    return jnp.broadcast_to(luma[..., None], images.shape)


def brighten(images: Images, factor: PerImage) -> Images:
    """Multiply all values."""
    return _within(images * _wide(factor))


def contrast(images: Images, factor: PerImage) -> Images:
    """Move values away from the mean of the grey image, by a factor."""
    mean = grey(images).mean((1, 2, 3), keepdims=True)
    return _within(mean + _wide(factor) * (images - mean))


def saturate(images: Images, factor: PerImage) -> Images:
    """Move colours away from grey, by a factor."""
    base = grey(images)
    return _within(base + _wide(factor) * (images - base))


def turn_hue(images: Images, turn: PerImage) -> Images:
    """Turn hues by fractions of a whole turn, in HSV; images that are not of three channels stay."""
    if images.shape[-1] != 3:
        return images
    hue, saturation, value = _to_hsv(images)
    return _from_hsv((hue + turn[:, None, None]) % 1.0, saturation, value)


def blur(images: Images, sigma: PerImage, width: int) -> Images:
    """Smooth by a Gaussian of a standard deviation in pixels for each image, cut off at an odd width.

    What lies beyond the edges is the image mirrored in its outermost pixels.
    """
    if width < 1 or width % 2 == 0 or width // 2 >= min(images.shape[1:3]):
        raise ValueError(
            f"a blur must have an odd width, of which half is less than the image, got {width} of {images.shape[1:3]}"
        )
    half = width // 2
    at = jnp.arange(-half, half + 1, dtype=images.dtype)
    weights = jnp.exp(-0.5 * jnp.square(at / jnp.maximum(sigma, 1e-3)[:, None]))
    weights = weights / weights.sum(1, keepdims=True)
    for axis in (1, 2):
        pads = [(half, half) if each == axis else (0, 0) for each in range(4)]
        padded, count = jnp.pad(images, pads, mode="reflect"), images.shape[axis]
        parts = (jax.lax.slice_in_dim(padded, i, i + count, axis=axis) for i in range(width))
        images = sum(_wide(weights[:, i]) * part for i, part in enumerate(parts))
    return images


def solarise(images: Images, threshold: float = 0.5) -> Images:
    """Invert what is brighter than a threshold."""
    return jnp.where(images >= threshold, 1 - images, images)


def where(which: Bool[Array, " B"], changed: Images, images: Images) -> Images:
    """Take some images changed, and the others as they are."""
    return _chosen(which, changed, images)


def blur_width(pixels: int) -> int:
    """Return an odd width near a tenth of an image's, at least 3 (Chen et al. 2020, appendix A)."""
    return max(2 * round(pixels / 20) + 1, 3)


def quarters(images: Images, order: Int[Array, "B 4"]) -> Images:
    """Put the quarters of images in another order: at position i, line by line, the quarter `order[i]`.

    Raises:
      ValueError: a height or width that is odd.
    """
    B, H, W, C = images.shape
    if H % 2 or W % 2:
        raise ValueError(f"quarters are of images of even height and width, got {H}×{W}")
    parts = images.reshape(B, 2, H // 2, 2, W // 2, C).swapaxes(2, 3).reshape(B, 4, H // 2, W // 2, C)
    parts = jnp.take_along_axis(parts, order[:, :, None, None, None], axis=1)
    return parts.reshape(B, 2, 2, H // 2, W // 2, C).swapaxes(2, 3).reshape(B, H, W, C)


def _wide(values: PerImage) -> Float[Array, "B 1 1 1"]:
    return values[:, None, None, None]


def _chosen(which: Bool[Array, " B"], one: Images, other: Images) -> Images:
    return jnp.where(which[:, None, None, None], one, other)


def _within(images: Images) -> Images:
    return jnp.clip(images, 0.0, 1.0)


def _to_hsv(images: Images) -> tuple[Array, Array, Array]:
    red, green, blue = (images[..., i] for i in range(3))
    most, least = images.max(-1), images.min(-1)
    span = most - least
    safe = jnp.where(span > 0, span, 1.0)
    # Not by equality with the largest, which the compiler may compute in another way than the channels.
    first, second = (red >= green) & (red >= blue), green >= blue
    in_red, in_green, in_blue = (green - blue) / safe, 2.0 + (blue - red) / safe, 4.0 + (red - green) / safe
    sector = jnp.where(first, in_red, jnp.where(second, in_green, in_blue))
    hue = jnp.where(span > 0, (sector / 6.0) % 1.0, 0.0)
    return hue, jnp.where(most > 0, span / jnp.where(most > 0, most, 1.0), 0.0), most


def _from_hsv(hue: Array, saturation: Array, value: Array) -> Images:
    def channel(offset: np.float32) -> Array:
        k = (offset + hue * 6.0) % 6.0
        return value - value * saturation * jnp.clip(jnp.minimum(k, 4.0 - k), 0.0, 1.0)

    return jnp.stack([channel(offset) for offset in np.array([5.0, 3.0, 1.0], np.float32)], axis=-1)
