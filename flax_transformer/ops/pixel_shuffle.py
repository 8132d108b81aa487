"""Channels that become pixels: how a grid is made larger without interpolation (Shi et al. 2016,
https://arxiv.org/abs/1609.05158).

Axes: B batch, H W height and width, C channels, r how many times larger.
"""

from jaxtyping import Array, Float


def pixel_shuffle(x: Float[Array, "*B H W C"], factor: int) -> Float[Array, "*B rH rW c"]:
    """Make a grid r times as high and wide, of C / r² channels; channel c · r² + i · r + j goes to row i and column j.

    The order is that of torch's `pixel_shuffle`.

    Raises:
      ValueError: channels that are no multiple of r².

    >>> import jax.numpy as jnp
    >>> pixel_shuffle(jnp.arange(4.0).reshape(1, 1, 4), 2)[..., 0].tolist()
    [[0.0, 1.0], [2.0, 3.0]]
    """
    *lead, H, W, C = x.shape
    if factor < 1 or C % factor**2:
        raise ValueError(f"channels must be a multiple of factor², got C={C}, factor={factor}")
    x = x.reshape(*lead, H, W, C // factor**2, factor, factor)
    n = len(lead)
    x = x.transpose(*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return x.reshape(*lead, H * factor, W * factor, C // factor**2)
