"""Multi-head attention: self, cross, and one token at a time with a cache (Vaswani et al. 2017, §3.2)."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.nn.config import BlockConfig
from flax_transformer.nn.linear import flat_dot_general
from flax_transformer.ops import Dropout, Mask, rotary
from flax_transformer.parallel import constrain

_projection_init = nnx.initializers.variance_scaling(0.5, "fan_avg", "uniform")
_output_init = nnx.initializers.xavier_uniform()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVCache:
    """Keys and values of the positions seen so far; the first `index` of S are filled."""

    key: Float[Array, "*B S K H"]
    value: Float[Array, "*B S K H"]
    index: Int[Array, "*L"]

    def append(self, key: Float[Array, "*B T K H"], value: Float[Array, "*B T K H"]) -> "KVCache":
        """Write T more positions; the caller sees to it that index + T ≤ S, as XLA would clamp silently."""
        at = (0,) * (self.key.ndim - 3) + (self.index, 0, 0)
        return KVCache(
            jax.lax.dynamic_update_slice(self.key, key.astype(self.key.dtype), at),
            jax.lax.dynamic_update_slice(self.value, value.astype(self.value.dtype), at),
            self.index + key.shape[-3],
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Memory:
    """A memory's keys and values, projected once by `Attention.project`, used at every decoding step."""

    key: Float[Array, "*B S K H"]
    value: Float[Array, "*B S K H"]


class Attention(nnx.Module):
    """Multi-head attention over itself or over a memory.

    Query, key and value have kernels [D, N, H] and [D, K, H]; `out` has [N, H, D].
    """

    def __init__(self, cfg: BlockConfig, *, rngs: nnx.Rngs):
        qkv_bias = cfg.bias if cfg.qkv_bias is None else cfg.qkv_bias

        def project(heads: int) -> nnx.LinearGeneral:
            return nnx.LinearGeneral(
                cfg.embed, (heads, cfg.width), use_bias=qkv_bias, kernel_init=_projection_init,
                dot_general=flat_dot_general, rngs=rngs, **cfg.dtypes,
            )  # fmt: skip

        self.cfg = cfg
        self.query, self.key, self.value = (
            project(cfg.heads),
            project(cfg.resolved_kv_heads),
            project(cfg.resolved_kv_heads),
        )
        self.out = nnx.LinearGeneral(
            (cfg.heads, cfg.width), cfg.embed, axis=(-2, -1), use_bias=cfg.bias, kernel_init=_output_init,
            dot_general=flat_dot_general, rngs=rngs, **cfg.dtypes,
        )  # fmt: skip
        if cfg.qk_norm:
            self.query_norm = nnx.RMSNorm(cfg.width, epsilon=cfg.norm_eps, rngs=rngs, **cfg.dtypes)
            self.key_norm = nnx.RMSNorm(cfg.width, epsilon=cfg.norm_eps, rngs=rngs, **cfg.dtypes)

    def project(self, memory: Float[Array, "*B S D"]) -> Memory:
        """Compute the keys and values of a memory, to be used for many queries."""
        key = self.key(memory)
        return Memory(self.key_norm(key) if self.cfg.qk_norm else key, self.value(memory))

    def init_cache(self, batch: int, length: int) -> KVCache:
        """Make an empty cache for `length` positions."""
        shape = (batch, length, self.cfg.resolved_kv_heads, self.cfg.width)
        zeros = jnp.zeros(shape, self.cfg.dtypes["dtype"])
        return KVCache(zeros, zeros, jnp.zeros((), jnp.int32))

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        memory: Float[Array, "*M S D"] | Memory | None = None,
        *,
        mask: Mask | None = None,
        bias: Float[Array, "..."] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        cache: KVCache | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"] | tuple[Float[Array, "*B T D"], KVCache]:
        """Attend.

        Args:
          memory: what to attend to, as hidden states or projected; None is self-attention. A projected memory of
            B/W rows serves queries of B rows, W consecutive ones each (the beams of a sentence share its memory).
          mask: what each query may see. With a cache, queries also never see the future or unwritten positions.
          bias: added to the query-key products, broadcastable to [*B, N, T, S].
          positions: of the queries, for rotary; 0, 1, … (from the cache's index on) by default.
          cache: keys and values of earlier positions; the call then returns (y, cache).
          key: for attention dropout; None means none.
        """
        cfg = self.cfg
        q = self.query(x)
        q = self.query_norm(q) if cfg.qk_norm else q
        kv = memory if isinstance(memory, Memory) else self.project(x if memory is None else memory)
        if cfg.rotary is not None and memory is None:
            if positions is None:
                positions = jnp.arange(x.shape[-2]) + (0 if cache is None else cache.index)
            frequencies = cfg.rotary.frequencies(cfg.width, cfg.rotary.base)
            q, kv = rotary(q, positions, frequencies), replace(kv, key=rotary(kv.key, positions, frequencies))
        if cache is not None:
            mask = (mask or Mask()) & Mask(causal=True, offset=cache.index)
            cache = cache.append(kv.key, kv.value)
            kv = Memory(cache.key, cache.value)
        extra = {} if key is None or not cfg.attention_dropout else {"dropout": Dropout(cfg.attention_dropout, key)}
        rows = q.shape
        if memory is not None and q.ndim == 4 and kv.key.shape[0] != rows[0]:
            q = q.reshape(kv.key.shape[0], -1, *rows[2:])
        y = cfg.attend(q, kv.key, kv.value, mask, bias, scale=cfg.scale, **extra)
        y = constrain(y.reshape(rows), "batch", "length", "heads", None)
        y = self.out(y)
        return y if cache is None else (y, cache)
