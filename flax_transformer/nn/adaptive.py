"""Residuals that a condition modulates: adaLN-Zero (Peebles & Xie 2022, https://arxiv.org/abs/2212.09748, §3.2).

Axes: B batch, T positions, D width.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.nn.block import SublayersConfig
from flax_transformer.nn.config import shared_fields
from flax_transformer.nn.linear import Linear
from flax_transformer.nn.module import Module
from flax_transformer.nn.residual import Residual, ResidualConfig
from flax_transformer.ops import layer_norm, widen
from flax_transformer.ops.activation import silu

Block = TypeVar("Block", bound=SublayersConfig)


class FixedNorm(Module):
    """Layer normalisation without a learned scale or bias."""

    def __init__(self, width: int, *, epsilon: float, dtype: DTypeLike):
        self.epsilon, self.dtype = epsilon, jnp.dtype(dtype)

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Normalise the last axis, in float32 whatever the input's type."""
        one = jnp.ones(x.shape[-1], widen(x).dtype)
        return layer_norm(x, one, jnp.zeros_like(one), self.epsilon).astype(self.dtype)


def fixed_norm(width: int, *, epsilon: float, dtype: DTypeLike, **others: Any) -> FixedNorm:
    """Make a norm without parameters, of what Flax's norms take."""
    return FixedNorm(width, epsilon=epsilon, dtype=dtype)


@frozen
class AdaptiveResidualConfig(ResidualConfig):
    """A pre-norm residual whose norm is scaled and shifted, and whose sublayer is scaled, by a condition."""

    norm: str | Callable = fixed_norm
    """As `ResidualConfig` has it; without parameters of its own."""
    norm_eps: float = 1e-6
    """What the norm adds to a variance."""
    norm_position: str = "pre"
    """Of a sublayer f: x + gate · f((1 + scale) · norm(x) + shift)."""

    takes = ("condition",)

    def __post_init__(self):
        super().__post_init__()
        if self.norm_position != "pre":
            raise ValueError(
                f"a condition modulates the norm before a sublayer, got norm_position={self.norm_position!r}"
            )

    def build(self, rngs: nnx.Rngs) -> "AdaptiveResidual":
        """Make the residual."""
        return AdaptiveResidual(self, rngs=rngs)


class AdaptiveResidual(Residual):
    """x + gate · f((1 + scale) · norm(x) + shift), of what a linear layer, which starts at 0, makes of a condition."""

    def __init__(self, cfg: AdaptiveResidualConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        self.modulation = zero_linear(cfg.embed, 3 * cfg.embed, cfg.precision, rngs)

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        sublayer: Callable[..., Array],
        *args: Any,
        condition: Float[Array, "*B D"],
        key: PRNGKeyArray | None = None,
        drop_path: Float[Array, ""] | float | None = None,
        **kwargs: Any,
    ) -> Float[Array, "*B T D"]:
        """Apply a sublayer; arguments as `Residual`'s.

        Args:
          condition: one vector a row.
        """
        shift, scale, gate = jnp.split(self.modulation(silu(condition))[..., None, :], 3, axis=-1)

        def run(x: Array, *args: Any, **kwargs: Any) -> Array:
            return sublayer(modulate(x, shift, scale), *args, **kwargs) * gate

        return super().__call__(x, run, *args, key=key, drop_path=drop_path, **kwargs)


def modulate(
    x: Float[Array, "*B T D"], shift: Float[Array, "*B 1 D"], scale: Float[Array, "*B 1 D"]
) -> Float[Array, "*B T D"]:
    """Scale and shift what a norm gives, by row."""
    return x * (1 + scale) + shift


def zero_linear(inputs: int, outputs: int, precision: Any, rngs: nnx.Rngs) -> Linear:
    """Make a linear layer that starts at 0."""
    return Linear(inputs, outputs, kernel_init=nnx.initializers.zeros, rngs=rngs, **precision.dtypes)


def adaptive_block(plain: Block) -> Block:
    """Give a pre-norm block residuals that a condition modulates, and no other norms."""

    def adaptive(residual: ResidualConfig) -> AdaptiveResidualConfig:
        return AdaptiveResidualConfig(**{**shared_fields(ResidualConfig, residual), "norm": fixed_norm})

    residuals = {name: getattr(plain, name, None) for name in ("residual", "feedforward_residual")}
    return replace(plain, **{name: adaptive(each) for name, each in residuals.items() if each is not None})
