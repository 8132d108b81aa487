"""Multi-head attention: self, cross, and one token at a time with a cache (Vaswani et al. 2017, §3.2)."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.nn.cache import KVCache, Memory
from flax_transformer.nn.check import check_beams, check_hidden, check_single
from flax_transformer.nn.config import BlockConfig
from flax_transformer.nn.linear import LinearGeneral, Product, initializer
from flax_transformer.ops import Dropout, Mask, rotary
from flax_transformer.ops.mask import check_mask
from flax_transformer.parallel import constrain
from flax_transformer.parallel.explicit import implicit

_projection_init = nnx.initializers.variance_scaling(0.5, "fan_avg", "uniform")


class Attention(nnx.Module):
    """Multi-head attention over itself or over a memory.

    Query, key and value have kernels [D, N, H] and [D, K, H]; `out` has [N, H, D].
    """

    def __init__(self, cfg: BlockConfig, *, rngs: nnx.Rngs):
        qkv_bias = cfg.bias if cfg.qkv_bias is None else cfg.qkv_bias

        out_bias = cfg.bias if cfg.out_bias is None else cfg.out_bias
        init = initializer(cfg, _projection_init)

        def project(layer: str, heads: int) -> LinearGeneral:
            return LinearGeneral(
                cfg.embed, (heads, cfg.width), use_bias=qkv_bias, kernel_init=init, dot_general=Product(layer),
                rngs=rngs, **cfg.dtypes,
            )  # fmt: skip

        self.cfg = cfg
        self.query = project("query", cfg.heads)
        self.key = project("key", cfg.resolved_kv_heads)
        self.value = project("value", cfg.resolved_kv_heads)
        self.out = LinearGeneral(
            (cfg.heads, cfg.width), cfg.embed, axis=(-2, -1), use_bias=out_bias,
            kernel_init=initializer(cfg, residual=True), dot_general=Product("out"), rngs=rngs, **cfg.dtypes,
        )  # fmt: skip
        if cfg.scale is not None:  # products begin as large as with the usual scale
            self.query.kernel[...] /= cfg.scale * math.sqrt(cfg.width)
        if cfg.qk_norm:
            self.query_norm = nnx.RMSNorm(cfg.width, epsilon=cfg.norm_eps, rngs=rngs, **cfg.dtypes)
            self.key_norm = nnx.RMSNorm(cfg.width, epsilon=cfg.norm_eps, rngs=rngs, **cfg.dtypes)

    @implicit("memory")
    def project(self, memory: Float[Array, "*B S D"], *, beams: int = 1) -> Memory:
        """Compute the keys and values of a memory, to be used for many queries.

        Args:
          beams: W, how many rows of queries share each row of the memory, which is not copied for it: row i of the
            queries looks at row i // W.
        """
        check_beams(beams)
        check_hidden(memory, self.cfg.embed, "memory")
        return Memory.of(*self._key_value(memory), beams)

    def _key_value(self, memory: Float[Array, "*B S D"]) -> tuple[Array, Array]:
        return self._normed("key", self.key(memory)), self.value(memory)

    def _look(self, q: Array, memory: Array | Memory, mask: Mask | None) -> tuple[Array, Array]:
        """Give a memory's keys and values for these queries: one row for each, for all, or for the beams of each."""
        if not isinstance(memory, Memory):
            check_hidden(memory, self.cfg.embed, "memory")
        k, v = memory.by_position() if isinstance(memory, Memory) else self._key_value(memory)
        rows, given, beams = q.shape[:-3], k.shape[:-3], getattr(memory, "beams", 1)
        if beams > 1:
            if rows != ((*given[:-1], given[-1] * beams) if given else (beams,)):
                raise ValueError(f"a memory of rows {given} shared by {beams} beams each takes as many, got {rows}")
            if mask is not None and mask.positional():
                raise ValueError("beams that share a memory have no place in it, got a causal mask or a window")
        elif given != rows:
            if given and (len(given) != len(rows) or any(a not in (1, b) for a, b in zip(given, rows, strict=True))):
                raise ValueError(
                    f"a memory must have the rows of x, {rows}, or one for all of them, got {given}; beams share the "
                    "rows of `project(memory, beams=W)`"
                )
            k, v = (jnp.broadcast_to(part, (*rows, *part.shape[-3:])) for part in (k, v))
        return k, v

    def _normed(self, which: str, heads: Array) -> Array:
        return getattr(self, f"{which}_norm")(heads) if self.cfg.qk_norm else heads

    def _query_key_value(self, x: Float[Array, "*B T D"]) -> tuple[Array, Array, Array]:
        if hasattr(self, "merged"):
            q, k, v = jnp.split(self.merged(x), (self.cfg.heads, self.cfg.heads + self.cfg.resolved_kv_heads), axis=-2)
        else:
            q, k, v = self.query(x), self.key(x), self.value(x)
        return self._normed("query", q), self._normed("key", k), v

    def for_decoding(self) -> "Attention":
        """Copy with query, key and value of self-attention as one product, which for few rows is faster than three."""
        copy = jax.tree.map(lambda leaf: leaf, self)
        parts = [copy.query, copy.key, copy.value]
        copy.merged = copy.query
        copy.merged.kernel = nnx.Param(jnp.concatenate([part.kernel[...] for part in parts], axis=1))
        if copy.merged.bias is not None:
            copy.merged.bias = nnx.Param(jnp.concatenate([part.bias[...] for part in parts], axis=0))
        copy.merged.out_features = copy.merged.kernel.shape[1:]
        del copy.query, copy.key, copy.value
        return copy

    def init_cache(self, batch: int, length: int, *, beams: int = 1) -> KVCache:
        """Make an empty cache for `length` positions of `batch` sentences, `beams` hypotheses each."""
        check_beams(beams)
        rows = () if batch == 1 else (batch,)
        heads, width, entries = self.cfg.resolved_kv_heads, self.cfg.width, length * beams
        zeros = lambda *shape: jnp.zeros((*rows, heads, *shape), self.cfg.dtypes["dtype"])  # noqa: E731
        ancestry = jnp.full((*rows, beams, length), -1, jnp.int32) if beams > 1 else None
        key, value = zeros(width, entries), zeros(entries, width)
        return KVCache(key, value, jnp.zeros((), jnp.int32), ancestry, beams=beams)

    @implicit("x")
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
          memory: what to attend to, as hidden states or projected; None is self-attention. It has the rows of x, or
            one row for all of them; rows that share it by `project(memory, beams=W)` are W times as many.
          mask: what each query may see. With a cache, queries also never see the future or unwritten positions. That
            of a memory with beams has the memory's rows, and says the same of each query.
          bias: added to the query-key products, broadcastable to [*B, N, T, S].
          positions: of the queries, for rotary; 0, 1, … (from the cache's index on) by default.
          cache: keys and values of earlier positions; the call then returns (y, cache).
          key: for attention dropout; None means none.

        Raises:
          ValueError: shapes that do not fit, or a memory and a cache, which is for self-attention.
        """
        cfg = self.cfg
        check_hidden(x, cfg.embed)
        check_single(self.out.kernel, 3)
        if memory is not None and cache is not None:
            raise ValueError("a cache is for self-attention and a memory is projected once, got both")
        if memory is None:
            q, k, v = self._query_key_value(x)
        else:
            q = self._normed("query", self.query(x))
            k, v = self._look(q, memory, mask)
        if cfg.rotary is not None and memory is None:
            if positions is None:
                positions = jnp.arange(x.shape[-2]) + (0 if cache is None else cache.index)
            frequencies = cfg.rotary.frequencies(cfg.width, cfg.rotary.base)
            q, k = rotary(q, positions, frequencies), rotary(k, positions, frequencies)
        if cache is not None:
            if mask is not None:
                check_mask(mask)
                mask.check(q.shape[:-3], cfg.heads, x.shape[-2], cache.length)
            mask, bias = cache.visible(mask, x.shape[-2]), cache.spread(bias)
            cache = cache.append(k, v)
            k, v = cache.by_position()
        extra = {} if key is None or not cfg.attention_dropout else {"dropout": Dropout(cfg.attention_dropout, key)}
        rows = q.shape
        if q.shape[:-3] != k.shape[:-3]:  # the hypotheses of a sentence look at the same keys
            q = q.reshape(*k.shape[:-3], -1, *rows[-2:])
        y = cfg.attend(q, k, v, mask, bias, scale=cfg.scale, **extra)
        if y.shape != q.shape:
            raise ValueError(f"attend must return heads as it is given queries, {q.shape}, got {y.shape}")
        y = constrain(y.reshape(rows), "batch", "length", "heads", None)
        y = self.out(y)
        return y if cache is None else (y, cache)
