"""Nyström attention as a layer: landmarks, and a convolution of the values beside (Xiong et al. 2021,
https://arxiv.org/abs/2102.03902).

Axes: B batch, T positions, N heads, H head width.
"""

from collections.abc import Callable

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from flax_transformer.frozen import frozen
from flax_transformer.nn.attention import Attention, AttentionConfig
from flax_transformer.nn.config import check_at_least
from flax_transformer.nn.conv import ConvConfig
from flax_transformer.ops import Dropout, Mask
from flax_transformer.ops.attention.nystrom import NystromAttention


@frozen
class NystromConfig(AttentionConfig):
    """Attention through landmarks, to which a depthwise convolution over the values of each head is added."""

    attend: Callable = NystromAttention()
    """A `NystromAttention`, with as many landmarks as wanted."""
    window: int | None = 33
    """Positions that the convolution sees, an odd number; None: no convolution. `transformers` says 65 for checkpoints
    of 4,096 positions."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "window")
        if self.window is not None and self.window % 2 == 0:
            raise ValueError(f"a window has a middle, an odd number of positions, got {self.window}")
        if self.resolved_kv_heads != self.heads:
            raise ValueError(f"a convolution is of each head's values, as many as queries, got K={self.kv_heads}")

    def build(self, rngs: nnx.Rngs) -> "NystromLayer":
        """Make the layer."""
        return NystromLayer(self, rngs=rngs)


class NystromLayer(Attention):
    """Attention with a convolution `residual`, one kernel a head, shared by the head's channels."""

    def __init__(self, cfg: NystromConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        if cfg.window is not None:
            self.residual = ConvConfig(
                channels=cfg.heads, features=cfg.heads, groups=cfg.heads, window=(cfg.window,), bias=False,
                padding=cfg.window // 2, init_std=cfg.init_std, precision=cfg.precision,
            ).build(rngs)  # fmt: skip

    def _mix(
        self, q: Array, k: Array, v: Array, mask: Mask | None, bias: Array | None, dropout: Dropout | None = None
    ) -> Array:
        y = super()._mix(q, k, v, mask, bias, dropout)
        if self.cfg.window is None:
            return y
        return y + jnp.moveaxis(self.residual(jnp.moveaxis(v, -1, -3)), -3, -1).astype(y.dtype)
