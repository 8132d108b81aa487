"""Query-key products that are smaller in each layer, as some GPT-2s have them for float16's sake."""

import jax
import jax.numpy as jnp
from flax import nnx

from flax_transformer.nn import Trunk


def falling_scale(trunk: Trunk) -> Trunk:
    """Return the trunk with the queries of layer i, from 1 on, divided by i; as it is where its blocks are apart."""
    if isinstance(trunk.blocks, nnx.List):
        return trunk
    trunk = jax.tree.map(lambda leaf: leaf, trunk)
    query, layers = trunk.blocks.attention.query, jnp.arange(1, trunk.cfg.depth + 1)
    for name in ("kernel", "bias"):
        if (values := getattr(query, name)) is not None:
            by = layers.reshape(-1, *(1,) * (values.ndim - 1)).astype(values.dtype)
            setattr(query, name, nnx.Param(values[...] / by))
    return trunk
