"""Normalisation by name: Flax's own layers, with the variance of a LayerNorm exact."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from flax_transformer.nn.config import BlockConfig
from flax_transformer.ops import layer_norm


class LayerNorm(nnx.LayerNorm):
    """Flax's parameters, `ops.layer_norm`."""

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Normalise the last axis, in float32 whatever the input's type."""
        return layer_norm(x, self.scale[...], self.bias[...], self.epsilon).astype(self.dtype)


def make_norm(cfg: BlockConfig, width: int | None = None, *, rngs: nnx.Rngs) -> LayerNorm | nnx.RMSNorm:
    """Make the LayerNorm or RMSNorm a block asks for, over its model width or another."""
    kind = {"layer": LayerNorm, "rms": nnx.RMSNorm}[cfg.norm]
    kinds = {**cfg.dtypes, "dtype": jnp.dtype(cfg.precision.residual)}
    return kind(width or cfg.embed, epsilon=cfg.norm_eps, rngs=rngs, **kinds)
