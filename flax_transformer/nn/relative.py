"""Relative positions as a bias on attention scores, learned (Raffel et al. 2020, https://arxiv.org/abs/1910.10683) or
falling with distance (Press et al. 2022, https://arxiv.org/abs/2108.12409).
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from flax_transformer.frozen import frozen
from flax_transformer.nn.config import Precision, check_fields
from flax_transformer.nn.module import Module
from flax_transformer.ops import alibi, causal_relative_buckets, lookup, relative_buckets, widen


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

    def build(self, heads: int, *, causal: bool, precision: Precision, rngs: nnx.Rngs) -> "RelativeBias":
        """Make the bias of attention with so many heads."""
        return RelativeBias(self, heads, causal=causal, precision=precision, rngs=rngs)


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


@frozen
class AlibiConfig:
    """Biases that fall linearly with distance, by a slope of each head's own; nothing is learned (ALiBi)."""

    scale: float = 1.0
    """What they are multiplied by: a Falcon scales them with its products of queries and keys, by H ** -0.5."""
    rounded: bool = False
    """Whether slopes, positions and their products have the digits of bfloat16, as Falcon in `transformers`; of causal
    attention alone."""

    def __post_init__(self):
        check_fields(self)
        if not self.scale > 0:
            raise ValueError(f"scale must be above 0, got {self.scale}")

    def build(self, heads: int, *, causal: bool, precision: Precision, rngs: nnx.Rngs) -> "AlibiBias":
        """Make the bias of attention with so many heads.

        Raises:
          ValueError: slopes that are rounded, of attention to both sides.
        """
        if self.rounded and not causal:
            raise ValueError(f"biases that are rounded are of causal attention alone, got {self}")
        return AlibiBias(self, heads)


class AlibiBias(Module):
    """`ops.alibi`, scaled: it has no parameters."""

    def __init__(self, cfg: AlibiConfig, heads: int):
        self.cfg, self.heads = cfg, heads

    def __call__(self, T: int, S: int, offset: Int[Array, ""] | int = 0) -> Float[Array, "N T S"]:
        """Return the bias of T queries on S keys, in float32; `offset` as `RelativeBias` has it."""
        if not self.cfg.rounded:
            return alibi(self.heads, T, S, offset) * self.cfg.scale
        # Of a row of scores all may have as much added: what the query's own position has is taken away.
        keys, queries = self._rounded(jnp.arange(S)), self._rounded(jnp.arange(T) + offset)
        return (keys[:, None, :] - queries[:, :, None]) * self.cfg.scale

    def _rounded(self, positions: Int[Array, "P"]) -> Float[Array, "N P"]:
        slopes = alibi(self.heads, 2, 2)[:, 0, 1]  # of a distance of one, below zero
        return -_short(_short(slopes)[:, None] * _short(positions.astype(jnp.float32)))


def _short(x: Array) -> Array:
    """Round to the digits of bfloat16, which a compiler may do without where a type is converted there and back."""
    return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
