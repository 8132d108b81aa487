"""Normalisation by name, from Flax's own layers."""

from flax import nnx

from flax_transformer.nn.config import BlockConfig


def make_norm(cfg: BlockConfig, width: int | None = None, *, rngs: nnx.Rngs) -> nnx.LayerNorm | nnx.RMSNorm:
    """Make the LayerNorm or RMSNorm a block asks for, over its model width or another."""
    kind = {"layer": nnx.LayerNorm, "rms": nnx.RMSNorm}[cfg.norm]
    return kind(width or cfg.embed, epsilon=cfg.norm_eps, rngs=rngs, **cfg.dtypes)
