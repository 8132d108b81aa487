"""Relative positions as a learned bias on attention scores (Raffel et al. 2020, https://arxiv.org/abs/1910.10683)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from flax_transformer.frozen import frozen
from flax_transformer.nn.config import Precision, check_fields
from flax_transformer.nn.module import Module
from flax_transformer.ops import causal_relative_buckets, lookup, relative_buckets, widen


@frozen
class RelativeConfig:
    """Buckets of distances: half hold one distance each, the rest grow logarithmically up to `max_distance`."""

    buckets: int = 32
    """Buckets, an even number."""
    max_distance: int = 128

    def __post_init__(self):
        check_fields(self)
        if self.buckets < 4 or self.buckets % 2:
            raise ValueError(f"buckets must be an even number of at least 4, got {self.buckets}")
        if self.max_distance <= self.buckets // 2:
            raise ValueError(
                f"max_distance must be above half the buckets, got max_distance={self.max_distance}, "
                f"buckets={self.buckets}"
            )


class RelativeBias(Module):
    """One number for every bucket and head; a decoder's buckets are all of the past."""

    def __init__(self, cfg: RelativeConfig, heads: int, *, causal: bool, precision: Precision, rngs: nnx.Rngs):
        self.cfg, self.causal = cfg, causal
        init = nnx.initializers.normal(0.02)
        self.bucket = nnx.Embed(cfg.buckets, heads, embedding_init=init, rngs=rngs, **precision.dtypes)

    def __call__(self, T: int, S: int, offset: Int[Array, ""] | int = 0) -> Float[Array, "N T S"]:
        """Return the bias of T queries on S keys, in float32 whatever attention computes in.

        Args:
          offset: position of the first query among the keys.
        """
        last = max(T - 1, 0)
        distances = jnp.arange(last + S) - last - offset  # from that of the last query to the first key
        sort = causal_relative_buckets if self.causal else relative_buckets
        buckets = sort(distances, buckets=self.cfg.buckets, max_distance=self.cfg.max_distance)
        bias = widen(lookup(self.bucket.embedding[...], buckets)).T
        # A query's bias is a window of its distances, one further on than the next query's. So many gradients are added
        # up for a distance, of many rows, that nothing here is shorter than float32.

        def window(first):
            return jax.lax.dynamic_slice_in_dim(bias, first, S, axis=1)

        return jax.vmap(window, out_axes=1)(last - jnp.arange(T))
