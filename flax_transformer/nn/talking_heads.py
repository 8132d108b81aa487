"""Attention whose heads talk to each other: linear maps over heads before and after the softmax (Shazeer et al. 2020,
https://arxiv.org/abs/2003.02436).

Axes: B batch, T query positions, S key positions, N heads, H head width.
"""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from flax_transformer.frozen import frozen
from flax_transformer.nn.attention import Attention, AttentionConfig, Few
from flax_transformer.ops import Dropout, Mask, widen
from flax_transformer.ops.attention.xla import attention_logits, masked_softmax, mix_weights


@frozen
class TalkingConfig(AttentionConfig):
    """Attention with as many heads before the softmax, in it and after it; memory O(T S)."""

    function = "attention with talking heads"

    def __post_init__(self):
        super().__post_init__()
        if self.resolved_kv_heads != self.heads:
            raise ValueError(
                f"talking heads are as many for keys as for queries, got N={self.heads}, K={self.kv_heads}"
            )

    def build(self, rngs: nnx.Rngs) -> "TalkingAttention":
        """Make the layer."""
        return TalkingAttention(self, rngs=rngs)


class TalkingAttention(Attention):
    """Multi-head attention with maps `before` and `after` the softmax, [N, N], that start as orthogonal ones.

    It serves every call that `Attention` does, with a cache too.
    """

    def __init__(self, cfg: TalkingConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        kind, draw = cfg.precision.dtypes["param_dtype"], nnx.initializers.orthogonal()
        for name in ("before", "after"):
            start = draw(rngs.params(), (cfg.heads, cfg.heads), kind)
            setattr(self, name, nnx.Param(start, out_sharding=(None, None), eager_sharding=False))

    def _mix(
        self, q: Array, k: Few, v: Few, mask: Mask | None, bias: Array | None, dropout: Dropout | None = None
    ) -> Array:
        cfg = self.cfg
        scores = attention_logits(q, k, bias, scale=cfg.scale)
        scores = jnp.einsum("...nts,nm->...mts", scores, widen(self.before[...]))
        weights = masked_softmax(scores, None if mask is None else mask.materialize(q.shape[-3], k.shape[-3]))
        weights = jnp.einsum("...mts,mn->...nts", weights, widen(self.after[...]))
        return mix_weights(weights, v, dropout, q.dtype)
