"""Normalisation by name, from Flax's own layers."""

import jax.numpy as jnp
from flax import nnx

from flax_transformer.nn.config import BlockConfig


def make_norm(cfg: BlockConfig, *, rngs: nnx.Rngs) -> nnx.LayerNorm | nnx.RMSNorm:
    """Make the LayerNorm or RMSNorm a block asks for, over its model width."""
    kind = {"layer": nnx.LayerNorm, "rms": nnx.RMSNorm}[cfg.norm]
    kinds = {**cfg.dtypes, "dtype": jnp.dtype(cfg.precision.residual)}
    return kind(cfg.embed, epsilon=cfg.norm_eps, rngs=rngs, **kinds)
