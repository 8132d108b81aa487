"""Batch normalisation as a pure function: statistics come in with the module and go out beside the result.

Axes: B batch, C channels, H W height and width, I J those of what comes, D features (Ioffe & Szegedy 2015, https://arxiv.org/abs/1502.03167).
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from flax_transformer.nn.conv import ConvConfig
from flax_transformer.nn.module import Module

_VECTOR = {"out_sharding": (None,), "eager_sharding": False}
"""The axes of a parameter, but for those of layers."""


class BatchNorm(Module):
    """Normalise every channel, the last axis, over all others: by its running statistics, or by those of the batch.

    Calling it uses the running statistics; `observe` uses the batch's and gives new running ones, which
    `train.carry.batch_statistics` carries from step to step.

    Args:
      channels: C.
      decay: what is kept of the running statistics in every step; 1 less torch's `momentum`.
      eps: what is added to a variance.
    """

    def __init__(self, channels: int, *, decay: float = 0.9, eps: float = 1e-5):
        if channels < 1 or not 0 <= decay <= 1 or eps < 0:
            raise ValueError(
                f"channels must be positive, decay in [0, 1], eps 0 or more: got {channels}, {decay}, {eps}"
            )
        self.decay, self.eps = decay, eps
        self.scale, self.bias = nnx.Param(jnp.ones(channels), **_VECTOR), nnx.Param(jnp.zeros(channels), **_VECTOR)
        self.mean = nnx.BatchStat(jnp.zeros(channels), **_VECTOR)
        self.var = nnx.BatchStat(jnp.ones(channels), **_VECTOR)

    def __call__(self, x: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        """Normalise by the running statistics, whatever else is in the batch."""
        return self._apply(x, self.mean[...], self.var[...])

    def observe(self, x: Float[Array, "*B C"]) -> tuple[Float[Array, "*B C"], dict[str, Float[Array, "C"]]]:
        """Normalise by the batch's own statistics; give the new running ones, `mean` and `var`, beside.

        A running variance takes the batch's without bias, divided by one less than the number of values.

        Raises:
          ValueError: for one value a channel, which has no variance.
        """
        count = math.prod(x.shape[:-1])
        if count < 2:
            raise ValueError(f"a batch must have two values a channel or more, got {count} of shape {x.shape}")
        wide, over = x.astype(jnp.float32), tuple(range(x.ndim - 1))
        mean = wide.mean(over)
        var = jnp.square(wide - mean).mean(over)
        new = {"mean": mean, "var": var * (count / (count - 1))}
        old = {"mean": self.mean[...], "var": self.var[...]}
        running = jax.tree.map(lambda was, now: self.decay * was + (1 - self.decay) * now, old, new)
        return self._apply(x, mean, var), jax.lax.stop_gradient(running)

    def _apply(self, x: jax.Array, mean: jax.Array, var: jax.Array) -> jax.Array:
        factor = self.scale[...] * jax.lax.rsqrt(var + self.eps)
        return ((x.astype(jnp.float32) - mean) * factor + self.bias[...]).astype(x.dtype)


class FrozenBatchNorm(BatchNorm):
    """A batch norm that stays as it is: factors and statistics are constants that training carries along."""

    def __init__(self, channels: int, *, decay: float = 0.9, eps: float = 1e-5):
        super().__init__(channels, decay=decay, eps=eps)
        self.scale = nnx.BatchStat(self.scale[...], **_VECTOR)
        self.bias = nnx.BatchStat(self.bias[...], **_VECTOR)

    def observe(self, x: Float[Array, "*B C"]) -> tuple[Float[Array, "*B C"], dict[str, Float[Array, "C"]]]:
        """Normalise by the running statistics, and give all that it holds, unchanged, beside."""
        return self(x), {name: getattr(self, name)[...] for name in ("bias", "mean", "scale", "var")}


Normalise = Callable[[BatchNorm, Array], tuple[Array, Any]]
"""What a layer with batch norms in it does by each of them, `by_batch` or `by_running`: it gives a result and new
statistics."""


def by_batch(norm: BatchNorm, x: Float[Array, "*B C"]) -> tuple[Float[Array, "*B C"], dict]:
    """Normalise by the statistics of the batch, unless they are frozen."""
    return norm.observe(x)


def by_running(norm: BatchNorm, x: Float[Array, "*B C"]) -> tuple[Float[Array, "*B C"], dict]:
    """Normalise by the running statistics; no statistics are new."""
    return norm(x), {}


class ConvNorm(Module):
    """A convolution and a batch norm; its call gives new statistics beside the result, under the paths they have in it.

    Args:
      convolution: usually without a bias, which the norm has.
      norm: of as many channels as the convolution gives.
    """

    def __init__(self, convolution: ConvConfig, norm: BatchNorm, *, rngs: nnx.Rngs):
        self.convolution = convolution.build(rngs)
        self.norm = norm

    def __call__(self, x: Float[Array, "*B H W C"], by: Normalise) -> tuple[Float[Array, "*B I J D"], dict[str, Any]]:
        """Convolve and normalise."""
        y, statistics = by(self.norm, self.convolution(x))
        return y, {"norm": statistics}
