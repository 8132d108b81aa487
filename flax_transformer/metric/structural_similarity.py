"""Structural similarity of images (Wang et al. 2004, https://doi.org/10.1109/TIP.2003.819861).

Axes: B images, H W height and width in pixels, C channels.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

WINDOW, DEVIATION = 11, 1.5
"""Pixels of the window's sides, and the standard deviation of its Gaussian weights."""
K1, K2 = 0.01, 0.03


@jax.default_matmul_precision("highest")
def structural_similarity(
    one: Float[Array, "*B H W C"], other: Float[Array, "*B H W C"], *, span: float = 1.0
) -> Float[Array, "*B"]:
    """Compute the mean structural similarity of each pair of images, over channels and all windows within the image.

    Means, variances and the covariance are of Gaussian weights; (2 μ₁μ₂ + c₁)(2 σ₁₂ + c₂) / ((μ₁² + μ₂² + c₁)(σ₁² + σ₂²
    + c₂)) with c₁ = (0.01 · span)², c₂ = (0.03 · span)². It is that of scikit-image with `gaussian_weights=True,
    use_sample_covariance=False`.

    Args:
      span: between the least and the greatest value that there may be.

    Raises:
      ValueError: images of other sizes, or smaller than a window.

    >>> image = jnp.linspace(0, 1, 11 * 11 * 1).reshape(11, 11, 1)
    >>> float(structural_similarity(image, image))
    1.0
    """
    if one.shape != other.shape or min(one.shape[-3:-1]) < WINDOW:
        raise ValueError(
            f"images must be of one size, at least {WINDOW}×{WINDOW}, got shapes {one.shape} and {other.shape}"
        )
    c1, c2 = (K1 * span) ** 2, (K2 * span) ** 2
    values = jnp.stack([one, other, one * one, other * other, one * other])
    mean1, mean2, square1, square2, product = _blurred(values)
    luminance = (2 * mean1 * mean2 + c1) / (mean1**2 + mean2**2 + c1)
    variances = square1 - mean1**2 + square2 - mean2**2
    structure = (2 * (product - mean1 * mean2) + c2) / (variances + c2)
    return jnp.mean(luminance * structure, axis=(-3, -2, -1))


def _blurred(x: Float[Array, "*B H W C"]) -> Float[Array, "*B h w C"]:
    """Average over every window that lies within the image."""
    for axis in (-3, -2):
        x = jnp.moveaxis(jnp.moveaxis(x, axis, -1) @ jnp.asarray(_band(x.shape[axis]), x.dtype), -1, axis)
    return x


def _band(length: int) -> Float[np.ndarray, "L l"]:
    """Return the weights of every window along an axis."""
    places = np.arange(WINDOW) - WINDOW // 2
    weights = np.exp(-0.5 * (places / DEVIATION) ** 2)
    band = np.zeros((length, length - WINDOW + 1))
    for start in range(band.shape[1]):
        band[start : start + WINDOW, start] = weights / weights.sum()
    return band
