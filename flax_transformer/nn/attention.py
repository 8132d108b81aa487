"""Multi-head attention: self, cross, and one token at a time with a cache (Vaswani et al. 2017, §3.2)."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import qwix
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, PRNGKeyArray
from qwix import QArray

from flax_transformer.frozen import frozen
from flax_transformer.nn.adapted import is_adapted
from flax_transformer.nn.cache import KVCache, Memory
from flax_transformer.nn.check import check_beams, check_hidden, check_single
from flax_transformer.nn.config import Precision, Rotary, check_at_least, check_fields, check_rates, shared_fields
from flax_transformer.nn.linear import LinearGeneral, Product, initializer
from flax_transformer.nn.module import Module
from flax_transformer.nn.norm import ZeroCenteredRMSNorm
from flax_transformer.nn.quantized import concatenate
from flax_transformer.ops import Dropout, Mask, attention
from flax_transformer.ops.mask import check_mask
from flax_transformer.parallel import constrain

PROJECTIONS = "query", "key", "value"

Few = Array | QArray
"""Keys or values, perhaps of few bits."""

Kind = TypeVar("Kind", bound="AttentionConfig")


def takes_few_bits(attend: Callable) -> bool:
    """Return whether an attention function multiplies keys and values of few bits as they are."""
    return attend is attention or "rounded" in getattr(attend, "supports", ())


_projection_init = nnx.initializers.variance_scaling(0.5, "fan_avg", "uniform")


@frozen
class AttentionConfig:
    """Multi-head attention: heads, positions, and which function computes it."""

    embed: int
    """D, the width of the residual stream."""
    heads: int
    """N, query heads."""
    kv_heads: int | None = None
    """K, key/value heads; fewer than `heads` is grouped-query attention. None: as many as `heads`."""
    head_width: int | None = None
    """H; None: D / N."""
    bias: bool | tuple[str, ...] = True
    """Biases of query, key and value, or of those of them that are named."""
    out_bias: bool | None = None
    """Bias of the output layer; None: as `bias`."""
    qk_norm: float | None = None
    """Epsilon of an RMSNorm over the width of every query and key head; None: no norm."""
    scale: float | None = None
    """What query-key products are multiplied by; None: 1 / sqrt(H)."""
    rotary: Rotary | None = None
    """Rotary positions of self-attention; None: none."""
    attention_dropout: float = 0.0
    """On attention probabilities."""
    attend: Callable = attention
    """Any module-level function with the signature of `ops.attention`."""
    init_std: float | None = None
    """Standard deviation kernels start with; None: Xavier's."""
    residual_init_std: float | None = None
    """That of the output layer, which writes to the residual stream; None: as `init_std`."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    memory, optional = None, False  # for attention to a memory, a `CrossAttentionConfig` has fields
    takes = "mask", "bias", "positions"  # of a block's arguments: see `Sublayer`
    takes_of_memory = "memory", "mask"
    head_norm = nnx.RMSNorm  # of queries and keys
    function = None  # what a layer that computes attention by itself is called, and takes no `attend`

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "embed", "heads", "kv_heads", "head_width", "memory")
        check_at_least(self, 0, "qk_norm", "init_std", "residual_init_std")
        check_rates(self, "attention_dropout")
        if unknown := set(self.biased).difference(PROJECTIONS):
            raise ValueError(f"biases are of {', '.join(PROJECTIONS)}, got {', '.join(sorted(unknown))}")
        if self.function is not None and self.attend is not attention:
            raise ValueError(f"{self.function} computes attention by itself, and takes no other attention function")
        if self.scale is not None and not self.scale > 0:
            raise ValueError(f"scale must be above 0, got {self.scale}")
        if self.head_width is None and self.embed % self.heads:
            raise ValueError(f"heads must divide the model width, got D={self.embed}, N={self.heads}")
        if self.heads % self.resolved_kv_heads:
            raise ValueError(
                f"query heads must be a multiple of kv heads, got N={self.heads}, K={self.resolved_kv_heads}"
            )
        if self.rotary is not None and self.rotary.width is None and self.turning_width % 2:
            raise ValueError(f"rotary positions need an even head width, got H={self.turning_width}")
        if self.rotary is not None and (self.rotary.width or 0) > self.turning_width:
            raise ValueError(f"at most H={self.turning_width} channels of a head turn, got {self.rotary.width}")

    @property
    def resolved_kv_heads(self) -> int:
        """K, resolved."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def width(self) -> int:
        """H, resolved."""
        return self.embed // self.heads if self.head_width is None else self.head_width

    @property
    def biased(self) -> tuple[str, ...]:
        """Which of query, key and value have a bias."""
        return self.bias if isinstance(self.bias, tuple) else PROJECTIONS * self.bias

    @property
    def query_width(self) -> int:
        """The width of what is multiplied of queries and keys."""
        return self.width

    @property
    def value_width(self) -> int:
        """The width of a head of values, and so of what is mixed of them."""
        return self.width

    @property
    def turning_width(self) -> int:
        """The channels of a head that rotary positions may turn."""
        return self.width

    @property
    def resolved_out_bias(self) -> bool:
        """Whether the output layer has a bias, resolved."""
        return bool(self.bias) if self.out_bias is None else self.out_bias

    @classmethod
    def like(cls: type[Kind], other: "AttentionConfig", **changes: Any) -> Kind:
        """Make a config of this kind with the fields that `other` shares with every kind of attention.

        Args:
          changes: values of other fields, or in place of these.
        """
        return cls(**{**shared_fields(AttentionConfig, other), **changes})

    def resolved(self) -> "AttentionConfig":
        """Spell out what None stands for, so that layers that are the same are equal."""
        scale = 1 / math.sqrt(self.query_width) if self.scale is None else self.scale
        return replace(
            self, kv_heads=self.resolved_kv_heads, head_width=self.width, out_bias=self.resolved_out_bias, scale=scale
        )

    @property
    def memory_width(self) -> int:
        """How wide a memory is."""
        return self.embed if self.memory is None else self.memory

    def build(self, rngs: nnx.Rngs) -> "Attention":
        """Make the layer."""
        return Attention(self, rngs=rngs)


@frozen
class CrossAttentionConfig(AttentionConfig):
    """Attention to a memory of another kind than the block's own hidden states: an image's, say."""

    memory: int | None = None
    """Width of the memory; None: D."""
    optional: bool = False
    """Whether a block that is given no memory does without this layer, instead of refusing: texts that are read alone
    or with an image (Li et al. 2022, https://arxiv.org/abs/2201.12086)."""

    def resolved(self) -> "CrossAttentionConfig":
        """Spell out what None stands for, so that layers that are the same are equal."""
        return replace(super().resolved(), memory=self.memory_width)


@frozen
class ZeroCenteredAttentionConfig(AttentionConfig):
    """Attention whose norms of queries and keys keep their scale as its distance from 1."""

    head_norm = ZeroCenteredRMSNorm


class Attention(Module):
    """Multi-head attention over itself or over a memory.

    Query, key and value have kernels [D, N, H] and [D, K, H]; `out` has [N, H, D]. `ops.capture(f, "query")` gives the
    queries, as they are multiplied, and so do "key" and "value"; "head_outputs" are [*B, T, N, H], before `out`, whose
    kernel is "out_kernel".
    """

    marked = PROJECTIONS  # what is given to `_mix`, by its names

    def __init__(self, cfg: AttentionConfig, *, rngs: nnx.Rngs):
        init, dtypes = initializer(cfg, _projection_init), cfg.precision.dtypes

        def project(layer: str, heads: int) -> LinearGeneral:
            return LinearGeneral(
                cfg.embed if layer == "query" else cfg.memory_width, (heads, cfg.width),
                use_bias=layer in cfg.biased, kernel_init=init,
                dot_general=Product(layer), rngs=rngs, **dtypes,
            )  # fmt: skip

        self.cfg = cfg
        self.query = project("query", cfg.heads)
        self.key = project("key", cfg.resolved_kv_heads)
        self.value = project("value", cfg.resolved_kv_heads)
        self.out = LinearGeneral(
            (cfg.heads, cfg.width), cfg.embed, axis=(-2, -1), use_bias=cfg.resolved_out_bias,
            kernel_init=initializer(cfg, residual=True), dot_general=Product("out"), rngs=rngs, **dtypes,
        )  # fmt: skip
        if cfg.scale is not None:  # products begin as large as with the usual scale
            self.query.kernel[...] /= cfg.scale * math.sqrt(cfg.width)
        if cfg.qk_norm is not None:
            self.query_norm = cfg.head_norm(cfg.width, epsilon=cfg.qk_norm, rngs=rngs, **dtypes)
            self.key_norm = cfg.head_norm(cfg.width, epsilon=cfg.qk_norm, rngs=rngs, **dtypes)

    def project(self, memory: Float[Array, "*B S W"], *, beams: int = 1) -> Memory:
        """Compute the keys and values of a memory, to be used for many queries.

        Args:
          beams: W, how many rows of queries share each row of the memory, which is not copied for it: row i of the
            queries looks at row i // W.
        """
        check_beams(beams)
        check_hidden(memory, self.cfg.memory_width, "memory")
        return Memory.of(*self._key_value(memory), beams)

    def _key_value(self, memory: Float[Array, "*B S W"]) -> tuple[Array, Array]:
        return self._normed("key", self.key(memory)), self.value(memory)

    def _memory_key_value(self, q: Array, memory: Array | Memory, mask: Mask | None) -> tuple[Few, Few]:
        """Return a memory's keys and values for these queries: one row for each, for all, or for the beams of each."""
        if not isinstance(memory, Memory):
            check_hidden(memory, self.cfg.memory_width, "memory")
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
            k, v = jax.tree.map(lambda part: jnp.broadcast_to(part, (*rows, *part.shape[-3:])), (k, v))
        return k, v

    def _normed(self, which: str, heads: Array) -> Array:
        return getattr(self, f"{which}_norm")(heads) if self.cfg.qk_norm is not None else heads

    def _query_key_value(self, x: Float[Array, "*B T D"]) -> tuple[Array, Array, Array]:
        if hasattr(self, "merged"):
            q, k, v = jnp.split(self.merged(x), (self.cfg.heads, self.cfg.heads + self.cfg.resolved_kv_heads), axis=-2)
        else:
            q, k, v = self.query(x), self.key(x), self.value(x)
        return self._normed("query", q), self._normed("key", k), v

    def for_decoding(self) -> "Attention":
        """Copy with query, key and value of self-attention as one product, which for few rows is faster than three.

        Those that have adapters beside them stay three.
        """
        copy = jax.tree.map(lambda leaf: leaf, self)
        parts = [copy.query, copy.key, copy.value]
        if any(is_adapted(part.kernel.get_value()) for part in parts):
            return copy
        copy.merged = copy.query
        copy.merged.kernel = nnx.Param(concatenate([part.kernel.get_value() for part in parts], axis=1))
        if self.cfg.biased:
            zeros = [jnp.zeros(part.kernel.shape[1:], part.kernel.dtype) for part in parts]
            biases = [zero if part.bias is None else part.bias[...] for part, zero in zip(parts, zeros, strict=True)]
            copy.merged.bias = nnx.Param(jnp.concatenate(biases, axis=0))
        copy.merged.out_features = copy.merged.kernel.shape[1:]
        del copy.query, copy.key, copy.value
        return copy

    def init_cache(self, batch: int, length: int, *, beams: int = 1) -> KVCache:
        """Make an empty cache for `length` positions of `batch` sentences, `beams` hypotheses each."""
        check_beams(beams)
        rows = () if batch == 1 else (batch,)
        heads, width, entries = self.cfg.resolved_kv_heads, self.cfg.width, length * beams

        def zeros(*shape):
            return jnp.zeros((*rows, heads, *shape), self.cfg.precision.dtypes["dtype"])

        ancestry = jnp.full((*rows, beams, length), -1, jnp.int32) if beams > 1 else None
        key, value = zeros(width, entries), zeros(entries, width)
        return KVCache(key, value, jnp.zeros((), jnp.int32), ancestry, beams=beams)

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        memory: Float[Array, "*M S W"] | Memory | None = None,
        *,
        mask: Mask | None = None,
        bias: Float[Array, "..."] | None = None,
        positions: Int[Array, "*#B T"] | Int[Array, "*#B T axes"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Attend.

        Args:
          memory: what to attend to, as hidden states or projected; None is self-attention. It has the rows of x, or
            one row for all of them; rows that share it by `project(memory, beams=W)` are W times as many.
          mask: what each query may see. That of a memory with beams has the memory's rows, and says the same of each
            query.
          bias: added to the query-key products, broadcastable to [*B, N, T, S].
          positions: of the queries, for rotary; 0, 1, … by default. They may have several ids: see `Rotary.sections`.
          key: for attention dropout; None means none.

        Raises:
          ValueError: shapes that do not fit.
        """
        self._check(x)
        if memory is None:
            q, k, v = self._placed(x, mask, positions, 0)
        else:
            q = self._normed("query", self.query(x))
            k, v = self._memory_key_value(q, memory, mask)
        return self._attend(q, k, v, mask, bias, key)

    def extend(
        self,
        x: Float[Array, "*B T D"],
        cache: KVCache,
        *,
        mask: Mask | None = None,
        bias: Float[Array, "..."] | None = None,
        positions: Int[Array, "*#B T"] | Int[Array, "*#B T axes"] | None = None,
    ) -> tuple[Float[Array, "*B T D"], KVCache]:
        """Attend from T more positions to those in the cache and to themselves, and put them into it.

        Args:
          cache: keys and values of earlier positions.
          mask: what each query may see; the future and unwritten positions are never seen.
          bias: added to the query-key products, broadcastable to [*B, N, T, S].
          positions: of the queries, for rotary; from the cache's index on by default.

        Raises:
          ValueError: shapes that do not fit.
        """
        self._check(x)
        q, k, v = self._placed(x, mask, positions, cache.index)
        if mask is not None:
            check_mask(mask)
            mask.check(q.shape[:-3], self.cfg.heads, x.shape[-2], cache.length)
        mask, bias = cache.visible(mask, x.shape[-2]), cache.spread(bias)
        cache = cache.append(k, v)
        return self._attend(q, *cache.by_position(), mask, bias, None), cache

    def _check(self, x: Array) -> None:
        check_hidden(x, self.cfg.embed)
        check_single(self.out.kernel, 3)

    def _placed(
        self, x: Array, mask: Mask | None, positions: Array | None, first: Array | int
    ) -> tuple[Array, Array, Array]:
        """Return queries, keys and values of self-attention, turned by their positions."""
        q, k, v = self._query_key_value(x)
        if self.cfg.rotary is None:
            return q, k, v
        positions = jnp.arange(x.shape[-2]) + first if positions is None else positions
        return (*self.cfg.rotary.under(mask).turn((q, k), positions), v)

    def _attend(
        self, q: Array, k: Few, v: Few, mask: Mask | None, bias: Array | None, key: PRNGKeyArray | None
    ) -> Array:
        cfg, shape = self.cfg, q.shape
        q, k, v = map(checkpoint_name, (q, k, v), self.marked)
        extra = {} if key is None or not cfg.attention_dropout else {"dropout": Dropout(cfg.attention_dropout, key)}
        if q.shape[:-3] != k.shape[:-3]:  # the hypotheses of a sentence look at the same keys
            q = q.reshape(*k.shape[:-3], -1, *shape[-2:])
        if isinstance(k, QArray) and not takes_few_bits(cfg.attend):
            k, v = (qwix.dequantize(part).astype(q.dtype) for part in (k, v))
        y, wanted = self._mix(q, k, v, mask, bias, **extra), (*q.shape[:-1], cfg.value_width)
        if y.shape != wanted:
            raise ValueError(f"attend must return heads as it is given queries, {wanted}, got {y.shape}")
        y = checkpoint_name(y.reshape(*shape[:-1], cfg.value_width), "head_outputs")
        windows = (None,) * (len(shape) - 4)  # between rows and positions
        y = constrain(y, "batch", *windows, "length", "heads", None)
        if isinstance(kernel := self.out.kernel.get_value(), jax.Array):  # no part of y: costs only who captures it
            checkpoint_name(kernel, "out_kernel")
        return self.out(y)

    def _mix(
        self, q: Array, k: Few, v: Few, mask: Mask | None, bias: Array | None, dropout: Dropout | None = None
    ) -> Array:
        """Return what each query sees of the values: what layers of other parameters do in another way."""
        extra = {} if dropout is None else {"dropout": dropout}  # a function that knows no dropout is given none
        return self.cfg.attend(q, k, v, mask, bias, scale=self.cfg.scale, **extra)
