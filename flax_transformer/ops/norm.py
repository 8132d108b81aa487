"""Layer normalisation (Ba et al. 2016, https://arxiv.org/abs/1607.06450) with the exact variance.

The mean is taken away before anything is squared: E[x²] - E[x]² has no digit left where the mean is a thousand times
the standard deviation. Axes: D model width.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flax_transformer.ops.float32 import widen


def layer_norm(
    x: Float[Array, "*B D"], scale: Float[Array, "D"], bias: Float[Array, "D"], eps: float
) -> Float[Array, "*B D"]:
    """Shift and stretch the last axis to mean `bias` and standard deviation `scale`, in float32 or more.

    >>> layer_norm(jnp.array([1003.0, 1001.0]), jnp.ones(2), jnp.zeros(2), 0.0)
    Array([ 1., -1.], dtype=float32)
    """
    return _standardize(widen(x), eps) * scale + bias


def unit(x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
    """Return vectors of length 1, in float32 or more; one of length 0 stays as it is, with a gradient of 0.

    >>> unit(jnp.array([3.0, 4.0]))
    Array([0.6, 0.8], dtype=float32)
    """
    x = widen(x)
    return x / jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(x), axis=-1, keepdims=True), 1e-24))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _standardize(x: Array, eps: float) -> Array:
    return _parts(x, eps)[0]


@_standardize.defjvp
def _standardize_jvp(eps, primals, tangents):
    # Two means that do not wait for each other, and nothing kept for the backward pass but the result and the factor:
    # less than the derivative of the formula needs, and faster than it is even with E[x²] - E[x]².
    (y, factor), slope = _parts(*primals, eps), tangents[0]
    drift = jnp.mean(slope, -1, keepdims=True) + y * jnp.mean(y * slope, -1, keepdims=True)
    return y, factor * (slope - drift)


def _parts(x: Array, eps: float) -> tuple[Array, Array]:
    x = x - jnp.mean(x, -1, keepdims=True)
    # The mean of what is left is what rounding left of it (Chan et al. 1983, the corrected two-pass algorithm).
    rest, square = jnp.mean(x, -1, keepdims=True), jnp.mean(x * x, -1, keepdims=True)
    factor = jax.lax.rsqrt(square - rest * rest + eps)
    return (x - rest) * factor, factor
