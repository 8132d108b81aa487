"""One vector of many, by attention: what a learned query sees in all of them (Lee et al. 2019,
https://arxiv.org/abs/1810.00825; Zhai et al. 2022, https://arxiv.org/abs/2106.04560).

Axes: B batch, T positions, D width.
"""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.padded import Padded, split_padded
from flax_transformer.nn import Precision, TransformerBlockConfig
from flax_transformer.nn.check import check_hidden
from flax_transformer.nn.config import check_fields
from flax_transformer.nn.module import Module
from flax_transformer.ops import Mask


@frozen
class AttentionPoolConfig:
    """A head without outputs of its own: attention from one learned query, and a feed-forward layer."""

    block: TransformerBlockConfig
    """What these are, and the norm before the feed-forward layer."""

    def __post_init__(self):
        check_fields(self)

    pool = "attention"

    @property
    def embed(self) -> int:
        """D."""
        return self.block.embed

    @property
    def outputs(self) -> int:
        """None: what it gives is of the model's width."""
        return 0

    @property
    def width(self) -> int:
        """How wide what it gives is."""
        return self.embed

    @property
    def precision(self) -> Precision:
        """That of its layers."""
        return self.block.residual.precision

    def build(self, rngs: nnx.Rngs) -> "AttentionPool":
        """Make the head."""
        return AttentionPool(self, rngs=rngs)


class AttentionPool(Module):
    """Hidden states in, one vector out."""

    def __init__(self, cfg: AttentionPoolConfig, *, rngs: nnx.Rngs):
        start = nnx.initializers.normal(cfg.embed**-0.5)
        probe = start(rngs.params(), (1, cfg.embed), cfg.precision.dtypes["param_dtype"])
        self.cfg = cfg
        self.probe = nnx.Param(probe, out_sharding=(None, "embed"), eager_sharding=False)
        self.attention = cfg.block.attention.build(rngs)
        self.norm = cfg.block.residual.make_norm(rngs)
        self.feedforward = cfg.block.feedforward.build(rngs)

    def __call__(
        self,
        hidden: Float[Array, "*B T D"] | Padded,
        last: Int[Array, "*B"] | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B D"]:
        """Pool what is not padding; `last` and `key`, which other heads have a use for, change nothing."""
        hidden, real = split_padded(hidden)
        check_hidden(hidden, self.cfg.embed, "hidden")
        mask = None if real is None else Mask(dense=real[..., None, None, :])
        probe = self.probe[...].astype(hidden.dtype)
        x = self.attention(jnp.broadcast_to(probe, (*hidden.shape[:-2], *probe.shape)), hidden, mask=mask)
        return (x + self.feedforward(self.norm(x)))[..., 0, :]
