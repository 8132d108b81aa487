"""How near images are to those that they should be.

Axes: B images, H W height and width in pixels, C channels.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt8

from flax_transformer.metric.structural_similarity import structural_similarity


class ImageQuality(NamedTuple):
    """Of each image."""

    l1: Float[np.ndarray, " B"]
    """Mean absolute difference of values between 0 and 1."""
    psnr: Float[np.ndarray, " B"]
    """Peak signal-to-noise ratio in decibels, 10 log₁₀(1 / mean squared difference); infinite for equal images."""
    ssim: Float[np.ndarray, " B"]
    """Structural similarity (Wang et al. 2004)."""


def image_quality(made: UInt8[np.ndarray, "B H W C"], target: UInt8[np.ndarray, "B H W C"]) -> ImageQuality:
    """Measure how near images are to their targets, both in bytes.

    Raises:
      ValueError: images of other sizes, or smaller than the 11×11 pixels of a window of SSIM.

    >>> white = np.full((1, 11, 11, 3), 255, np.uint8)
    >>> [round(float(each[0]), 4) for each in image_quality(white, white - 51)][:2]
    [0.2, 13.9794]
    """
    one, other = (each.astype(np.float64) / 255 for each in (made, target))
    ssim = structural_similarity(jnp.asarray(one, jnp.float32), jnp.asarray(other, jnp.float32))
    difference = (one - other).reshape(len(one), -1)
    with np.errstate(divide="ignore"):
        psnr = -10 * np.log10((difference**2).mean(axis=1))
    return ImageQuality(np.abs(difference).mean(axis=1), psnr, np.asarray(ssim, np.float64))
