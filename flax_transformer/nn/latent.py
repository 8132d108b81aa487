"""Multi-head latent attention: keys and values are made of one latent vector a position, which is all that decoding
remembers, with a rotary key that all heads share (DeepSeek-AI 2024, DeepSeek-V2, https://arxiv.org/abs/2405.04434,
§2.1).

Axes: B batch, T query positions, S key positions, N heads, H head width, V width of a head of values, C latent width,
R rotary width, D model width.
"""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import qwix
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float
from qwix import QArray

from flax_transformer.frozen import frozen
from flax_transformer.nn.attention import Attention, AttentionConfig, Few
from flax_transformer.nn.cache import KVCache, Memory
from flax_transformer.nn.check import check_beams
from flax_transformer.nn.config import check_at_least
from flax_transformer.nn.linear import (
    Linear,
    LinearGeneral,
    Product,
    StructuredKernel,
    cast_where_used,
    initializer,
    whole_kernel,
)
from flax_transformer.nn.norm import make_norm
from flax_transformer.nn.quantized import Quantized
from flax_transformer.ops import Dropout, Mask
from flax_transformer.ops.attention.latent import latent_attention
from flax_transformer.ops.position import split_pairs
from flax_transformer.ops.rounded_product import rounded_product


@frozen
class LatentAttentionConfig(AttentionConfig):
    """Attention whose keys and values are up-projections of a latent vector, beside which a head has R channels that
    rotary positions turn: queries and keys are H + R wide.

    `bias` is of the down-projections, and `scale` is 1 / sqrt(H + R) by default.
    """

    latent: int
    """C, the width of what keys and values are made of."""
    rotary_width: int
    """R, channels of queries that turn, and of the key that all heads share."""
    query_latent: int | None = None
    """The width of what queries are made of, with a norm; None: queries are projected from hidden states at once."""
    value_head: int | None = None
    """V, the width of a head of values; None: H."""
    interleaved: bool = True
    """Whether channels 2i and 2i + 1 turn together, as in DeepSeek's checkpoints; or i and i + R / 2."""
    latent_norm: float = 1e-6
    """Epsilon of the RMSNorms of the latents."""
    mscale: float = 0.0
    """m: the scale is multiplied by (0.1 m ln(factor) + 1)², with the factor above 1 by which rotary frequencies are
    slowed (`mscale_all_dim`); 0: it is not."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "latent", "rotary_width", "query_latent", "value_head")
        check_at_least(self, 0, "latent_norm", "mscale")
        if self.resolved_kv_heads != self.heads or self.qk_norm is not None:
            raise ValueError(
                f"keys of all N={self.heads} heads are made of one latent, and have no norm of their own, got "
                f"K={self.resolved_kv_heads}, qk_norm={self.qk_norm}"
            )
        if self.rotary_width % 2:
            raise ValueError(f"rotary positions turn pairs of channels, got R={self.rotary_width}")
        if self.mscale and not hasattr(getattr(self.rotary, "frequencies", None), "factor"):
            raise ValueError(f"mscale is of rotary frequencies that a factor slows, got mscale={self.mscale}")

    @property
    def query_width(self) -> int:
        """H + R."""
        return self.width + self.rotary_width

    @property
    def value_width(self) -> int:
        """V, resolved."""
        return self.width if self.value_head is None else self.value_head

    @property
    def turning_width(self) -> int:
        """R."""
        return self.rotary_width

    @property
    def score_scale(self) -> float:
        """What query-key products are multiplied by, all in all."""
        scale = 1 / math.sqrt(self.query_width) if self.scale is None else self.scale
        if not self.mscale or self.rotary.frequencies.factor <= 1:
            return scale
        return scale * (0.1 * self.mscale * math.log(self.rotary.frequencies.factor) + 1) ** 2

    def resolved(self) -> "LatentAttentionConfig":
        """Spell out what None stands for, so that layers that are the same are equal."""
        return replace(super().resolved(), value_head=self.value_width)

    def build(self, rngs: nnx.Rngs) -> "LatentAttention":
        """Make the layer."""
        return LatentAttention(self, rngs=rngs)

    def absorbs(self, T: int, S: int) -> bool:
        """Return whether T queries and S keys are multiplied in the space of latents, since it is less work.

        Where there are as many queries as keys, as in training and where a prompt is read, they never are.
        """
        if not (isinstance(T, int) and isinstance(S, int)):  # lengths that `jax.export` leaves open
            return isinstance(T, int) and T == 1
        H, R, V, C = self.width, self.rotary_width, self.value_width, self.latent
        up = C * (H + V)
        return T < S and T * S * (2 * C + R) + T * up < T * S * (H + R + V) + S * up


class LatentAttention(Attention):
    """Self-attention by latents, and its cache of C + R numbers a position.

    `latent` [D, C + R] makes the latents and the rotary keys, `key` [C, N, H] and `value` [C, N, V] what heads have of
    them, `out` [N, V, D] the output. Queries are `query` [D, N, H + R], or `query_down` and `query` of a latent of
    their own.

    There are two forms of one function. Expanded, keys and values of every head are made, and any attention function
    takes them; values are filled up to the width of keys, or the other way round. Absorbed, the projections of keys and
    values are multiplied with the queries and with what comes out, so that all heads attend to the latents as they are:
    decoding reads the cache once a step and expands nothing. The cache is a `KVCache` of one head: its keys are the
    rotary keys, its values the latents. `ops.capture(f, "latent")` and "rotary_key" give these; "key" and "value" are
    of the expanded form alone.
    """

    marked = "query", "rotary_key", "latent"

    def __init__(self, cfg: LatentAttentionConfig, *, rngs: nnx.Rngs):
        dtypes, bias = cfg.precision.dtypes, bool(cfg.bias)

        def down(width: int) -> Linear:
            kinds = {"kernel_init": initializer(cfg), "dot_general": Product(), "rngs": rngs, **dtypes}
            return Linear(cfg.embed, width, use_bias=bias, **kinds)

        def up(layer: str, inputs: int, width: int) -> LinearGeneral:
            kinds = {"kernel_init": initializer(cfg), "dot_general": Product(layer), "rngs": rngs, **dtypes}
            return LinearGeneral(inputs, (cfg.heads, width), use_bias=False, **kinds)

        def norm(width: int) -> nnx.Module:
            return make_norm("rms", width, eps=cfg.latent_norm, precision=cfg.precision, rngs=rngs)

        self.cfg = cfg
        if cfg.query_latent is not None:
            self.query_down, self.query_norm = down(cfg.query_latent), norm(cfg.query_latent)
        self.query = up("query", cfg.embed if cfg.query_latent is None else cfg.query_latent, cfg.query_width)
        self.latent, self.latent_norm = down(cfg.latent + cfg.rotary_width), norm(cfg.latent)
        self.key, self.value = up("key", cfg.latent, cfg.width), up("value", cfg.latent, cfg.value_width)
        self.out = LinearGeneral(
            (cfg.heads, cfg.value_width), cfg.embed, axis=(-2, -1), use_bias=cfg.resolved_out_bias,
            kernel_init=initializer(cfg, residual=True), dot_general=Product("out"), rngs=rngs, **dtypes,
        )  # fmt: skip

    def __call__(self, x: Float[Array, "*B T D"], memory: Any = None, **given: Any) -> Float[Array, "*B T D"]:
        """Attend, as `Attention` does, to no memory.

        Raises:
          ValueError: a memory, or shapes that do not fit.
        """
        return super().__call__(x, **given) if memory is None else self.project(memory)

    def project(self, memory: Float[Array, "*B S W"], *, beams: int = 1) -> Memory:
        """Refuse: there is no attention to a memory.

        Raises:
          ValueError: always.
        """
        raise ValueError("latent attention is of a sequence to itself, got a memory")

    def for_decoding(self) -> "LatentAttention":
        """Copy the layer: it is laid out for decoding as it is."""
        return jax.tree.map(lambda leaf: leaf, self)

    def init_cache(self, batch: int, length: int, *, beams: int = 1) -> KVCache:
        """Make an empty cache for `length` positions of `batch` sentences, `beams` hypotheses each."""
        check_beams(beams)
        rows, cfg, entries = () if batch == 1 else (batch,), self.cfg, length * beams
        kind = cfg.precision.dtypes["dtype"]
        key, value = (
            jnp.zeros((*rows, 1, *shape), kind) for shape in ((cfg.rotary_width, entries), (entries, cfg.latent))
        )
        ancestry = jnp.full((*rows, beams, length), -1, jnp.int32) if beams > 1 else None
        return KVCache(key, value, jnp.zeros((), jnp.int32), ancestry, beams=beams)

    def _query_key_value(self, x: Float[Array, "*B T D"]) -> tuple[Array, Array, Array]:
        """Return queries [*B, T, N, H + R], rotary keys [*B, T, 1, R] and latents [*B, T, 1, C]."""
        low = x if self.cfg.query_latent is None else self.query_norm(self.query_down(x))
        latent, key = jnp.split(self.latent(x), [self.cfg.latent], axis=-1)
        return self.query(low), key[..., None, :], self.latent_norm(latent)[..., None, :]

    def _placed(
        self, x: Array, mask: Mask | None, positions: Array | None, first: Array | int
    ) -> tuple[Array, Array, Array]:
        q, key, latent = self._query_key_value(x)
        if self.cfg.rotary is None:
            return q, key, latent
        positions = jnp.arange(x.shape[-2]) + first if positions is None else positions
        plain, turning = jnp.split(q, [self.cfg.width], axis=-1)
        pairs = [split_pairs(each) if self.cfg.interleaved else each for each in (turning, key)]
        turned, key = self.cfg.rotary.under(mask).turn(pairs, positions)
        return jnp.concatenate([plain, turned], axis=-1), key, latent

    def _mix(
        self, q: Array, k: Few, v: Few, mask: Mask | None, bias: Array | None, dropout: Dropout | None = None
    ) -> Array:
        if dropout is None and self.cfg.absorbs(q.shape[-3], k.shape[-3]):
            kernels = [_whole(layer.kernel.get_value(), q.dtype) for layer in (self.key, self.value)]
            if all(kernel is not None for kernel in kernels):
                return self._absorbed(q, k, v, mask, bias, *kernels)
        k, v = (qwix.dequantize(part).astype(q.dtype) if isinstance(part, QArray) else part for part in (k, v))
        return self._expanded(q, k, v, mask, bias, dropout)

    def _expanded(
        self, q: Array, key: Array, latent: Array, mask: Mask | None, bias: Array | None, dropout: Dropout | None
    ) -> Array:
        """Attend with keys and values of every head."""
        cfg, latent = self.cfg, latent[..., 0, :]
        key = jnp.broadcast_to(key, (*key.shape[:-2], cfg.heads, cfg.rotary_width))
        k = checkpoint_name(jnp.concatenate([self.key(latent), key], axis=-1), "key")
        q, k, v = _as_wide(q, k, checkpoint_name(self.value(latent), "value"))
        extra = {} if dropout is None else {"dropout": dropout}
        return cfg.attend(q, k, v, mask, bias, scale=cfg.score_scale, **extra)[..., : cfg.value_width]

    def _absorbed(
        self, q: Array, key: Few, latent: Few, mask: Mask | None, bias: Array | None, up_key: Array, up_value: Array
    ) -> Array:
        """Attend to latents; the up-projections are multiplied with the queries and with the outputs."""
        plain, turned = jnp.split(q, [self.cfg.width], axis=-1)
        low = rounded_product("...tnh,cnh->...tnc", plain, up_key)
        mixed = latent_attention(low, turned, latent, key, mask, bias, scale=self.cfg.score_scale)
        return rounded_product("...tnc,cnh->...tnh", mixed, up_value)


def _as_wide(q: Array, k: Array, v: Array) -> tuple[Array, ...]:
    """Fill queries and keys, or values, up with zeros to the width of the others."""
    width = max(q.shape[-1], v.shape[-1])
    return tuple(jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])]) for x in (q, k, v))


def _whole(kernel: Array | StructuredKernel, dtype: jnp.dtype) -> Array | None:
    """Return an up-projection as an array; None where each row has another."""
    if isinstance(kernel, Quantized):
        return kernel.dequantize().astype(dtype)
    if isinstance(kernel, StructuredKernel):
        return None
    return whole_kernel(cast_where_used(kernel, dtype), ("embed", "kv_heads", None))
