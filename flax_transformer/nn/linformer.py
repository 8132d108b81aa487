"""Attention to a learned summary of the keys, in linear time: Linformer (Wang et al. 2020,
https://arxiv.org/abs/2006.04768).

Axes: B batch, T query positions, S key positions, K key/value heads, H head width, R rows of the summary.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.nn.attention import Attention, AttentionConfig
from flax_transformer.nn.cache import KVCache
from flax_transformer.nn.config import check_at_least
from flax_transformer.ops import Dropout, Mask


@frozen
class LinformerConfig(AttentionConfig):
    """Attention whose keys and values are projected from their length to `rank` rows.

    All of a text is in every row, so that nothing can be causal; of masks it knows lengths.
    """

    length: int
    """Positions that the projections are made for; a shorter text uses the first of them."""
    rank: int = 256
    """R, k of the paper."""
    share: Literal["none", "heads", "both"] = "heads"
    """Whether each head has projections of its own, all heads have one for keys and one for values (headwise), or one
    for both (key-value). Sharing over layers is not among these: a stack keeps each layer's own."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "length", "rank")
        if self.rank > self.length:
            raise ValueError(f"a rank must be at most the length, got rank={self.rank}, length={self.length}")

    def build(self, rngs: nnx.Rngs) -> "LinformerAttention":
        """Make the layer."""
        return LinformerAttention(self, rngs=rngs)

    def refuses(self, S: int, mask: Mask | None, bias: Array | jax.ShapeDtypeStruct | None = None) -> str | None:
        """Return why attention to S positions cannot be served, None where it can."""
        asked = {} if mask is None else vars(mask) | {"causal": mask.causal or None, "also": mask.also or None}
        masks = [name for name, value in asked.items() if value is not None and name != "lengths"]
        if masks:
            return (
                f"its keys are sums over all positions, of which it can hide lengths alone, got a mask with {masks[0]}"
            )
        if bias is not None:
            return "its keys are sums over all positions, which have no bias of scores, got one"
        return f"it has projections for {self.length} positions, got {S}" if self.length < S else None


class LinformerAttention(Attention):
    """Attention with projections `summary_key` and `summary_value` of [S, R], of [K, S, R] for each head."""

    def __init__(self, cfg: LinformerConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        kind = cfg.precision.dtypes["param_dtype"]
        shape = (cfg.length, cfg.rank)
        shape = (cfg.resolved_kv_heads, *shape) if cfg.share == "none" else shape
        # A row of a summary begins as large as a mean of normal keys times the square root of their number.
        draw = nnx.initializers.normal(cfg.length**-0.5)
        for name in ("summary_key",) if cfg.share == "both" else ("summary_key", "summary_value"):
            start = draw(rngs.params(), shape, kind)
            setattr(self, name, nnx.Param(start, out_sharding=(None,) * len(shape), eager_sharding=False))

    def init_cache(self, batch: int, length: int, *, beams: int = 1) -> KVCache:
        """Refuse: there is nothing to decode with.

        Raises:
          ValueError: always.
        """
        raise ValueError("linformer attention cannot be causal, and so has no cache")

    def _mix(
        self, q: Array, k: Array, v: Array, mask: Mask | None, bias: Array | None, dropout: Dropout | None = None
    ) -> Array:
        if reason := self.cfg.refuses(k.shape[-3], mask, bias):
            raise ValueError(f"linformer attention cannot serve this call: {reason}")
        if mask is not None and mask.lengths is not None:
            mask.check(q.shape[:-3], q.shape[-2], q.shape[-3], k.shape[-3])
            real = (jnp.arange(k.shape[-3]) < mask.lengths[..., None])[..., None, None]
            k, v = jnp.where(real, k, 0), jnp.where(real, v, 0)
        k = _summarise(k, self.summary_key[...])
        v = _summarise(v, (self.summary_key if self.cfg.share == "both" else self.summary_value)[...])
        return super()._mix(q, k, v, None, None, dropout)


def _summarise(x: Float[Array, "*B S K H"], rows: Float[Array, "..."]) -> Float[Array, "*B R K H"]:
    """Project a length; shorter ones by the first rows."""
    rows = rows[..., : x.shape[-3], :].astype(x.dtype)
    return jnp.einsum("...skh,sr->...rkh" if rows.ndim == 2 else "...skh,ksr->...rkh", x, rows)
