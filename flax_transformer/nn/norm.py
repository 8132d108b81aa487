"""Normalisation by name: Flax's own layers, with the variance of a LayerNorm exact."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.nn.config import Precision, check_at_least, check_fields
from flax_transformer.nn.module import Module
from flax_transformer.ops import layer_norm, widen


class LayerNorm(nnx.LayerNorm):
    """Flax's parameters, `ops.layer_norm`."""

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Normalise the last axis, in float32 whatever the input's type."""
        bias = jnp.zeros_like(self.scale[...]) if self.bias is None else self.bias[...]
        return layer_norm(x, self.scale[...], bias, self.epsilon).astype(self.dtype)


class LayerNormWithoutBias(LayerNorm):
    """A LayerNorm with a scale alone."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **{**options, "use_bias": False})


class RMSNorm(nnx.RMSNorm):
    """Flax's, which promotes types on its way that strict promotion keeps apart."""

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Divide by the root of the mean square over the last axis, in float32 whatever the input's type."""
        y = widen(x)
        factor = jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + self.epsilon)
        return (y * (factor * self._factors(y.dtype))).astype(self.dtype)

    def _factors(self, dtype: Any) -> Float[Array, "D"]:
        """Return what each channel is multiplied by."""
        return self.scale[...].astype(dtype)


class ZeroCenteredRMSNorm(RMSNorm):
    """An RMSNorm whose scale is kept as its distance from 1, as Gemma's is: weight decay then draws it to 1."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **{"scale_init": nnx.initializers.zeros, **options})

    def _factors(self, dtype: Any) -> Float[Array, "D"]:
        return 1 + super()._factors(dtype)


class GroupNorm(nnx.GroupNorm):
    """Flax's parameters (Wu & He 2018, https://arxiv.org/abs/1803.08494), of images with any number of batch axes."""

    def __call__(self, x: Float[Array, "*B H W C"]) -> Float[Array, "*B H W C"]:
        """Normalise all positions of a group of channels of one image, in float32 whatever the input's type."""
        parts = widen(x).reshape(*x.shape[:-1], self.num_groups, -1)
        parts = parts - jnp.mean(parts, (-4, -3, -1), keepdims=True)
        factor = jax.lax.rsqrt(jnp.mean(jnp.square(parts), (-4, -3, -1), keepdims=True) + self.epsilon)
        y = (parts * factor).reshape(x.shape)
        return (y * self.scale[...] + self.bias[...]).astype(self.dtype)


NORMS: dict[str, Callable] = {
    "layer": LayerNorm, "layer_without_bias": LayerNormWithoutBias, "rms": RMSNorm,
    "zero_centered_rms": ZeroCenteredRMSNorm,
}  # fmt: skip


def check_norm(kind: str | Callable) -> None:
    """Raise ValueError for a name that no norm has."""
    if not callable(kind) and kind not in NORMS:
        raise ValueError(f"norm must be one of {', '.join(NORMS)} or a function, got {kind!r}")


def make_norm(
    kind: str | Callable, width: int, *, eps: float, precision: Precision, rngs: nnx.Rngs
) -> Callable[[Array], Array]:
    """Make a norm over the last axis: of a name in `NORMS`, or whatever a function makes that takes what Flax's take.

    It computes in float32 and gives what the residual stream is kept in.
    """
    make = kind if callable(kind) else NORMS[kind]
    return make(width, epsilon=eps, rngs=rngs, **{**precision.dtypes, "dtype": jnp.dtype(precision.residual)})


@frozen
class NormConfig:
    """A norm over the last axis."""

    kind: str | Callable = "layer"
    """A name in `NORMS`, or a module-level function that takes what `nnx.LayerNorm` takes and makes a norm."""
    eps: float = 1e-5
    """Epsilon."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 0, "eps")
        check_norm(self.kind)


def make_norm_of(
    norm: float | NormConfig, width: int, *, precision: Precision, rngs: nnx.Rngs
) -> Callable[[Array], Array]:
    """Make the norm of a config, or the LayerNorm of an epsilon."""
    norm = norm if isinstance(norm, NormConfig) else NormConfig(eps=norm)
    return make_norm(norm.kind, width, eps=norm.eps, precision=precision, rngs=rngs)


class NoNorm(Module):
    """What stands where a norm would be."""

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Return what it is given."""
        return x


def no_norm(width: int, **options: Any) -> NoNorm:
    """Make no norm, of what Flax's norms take."""
    return NoNorm()
