"""DETR's block: positions are added to queries and keys in every layer, never to values (Carion et al. 2020,
https://arxiv.org/abs/2005.12872)."""

from dataclasses import replace
from typing import Any

from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.nn.attention import Attention, AttentionConfig
from flax_transformer.nn.check import check_hidden
from flax_transformer.nn.transformer_block import TransformerBlockConfig, transformer_block
from flax_transformer.ops import Mask


@frozen
class DetrAttentionConfig(AttentionConfig):
    """Attention whose queries and keys have positions added."""

    takes = "mask", "position_embedding"
    takes_of_memory = "memory", "mask", "position_embedding", "memory_position_embedding"

    def __post_init__(self):
        super().__post_init__()
        if self.rotary is not None or self.qk_norm is not None:
            raise ValueError("attention with added positions has no rotary ones and no norm of queries, got some")

    def build(self, rngs: nnx.Rngs) -> "DetrAttention":
        """Make the layer."""
        return DetrAttention(self, rngs=rngs)


class DetrAttention(Attention):
    """Attention over itself or over a memory, each with positions."""

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        memory: Float[Array, "*B S D"] | None = None,
        *,
        position_embedding: Float[Array, "*#B T D"],
        memory_position_embedding: Float[Array, "*#B S D"] | None = None,
        mask: Mask | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Attend.

        Args:
          memory: what to attend to; None is self-attention.
          position_embedding: positions of x.
          memory_position_embedding: those of the memory.
          mask: what each query may see.
          key: for attention dropout; None means none.

        Raises:
          ValueError: shapes that do not fit.
        """
        self._check(x)
        source, beside = (x, position_embedding) if memory is None else (memory, memory_position_embedding)
        check_hidden(source, self.cfg.embed, "memory")
        q, k, v = self.query(x + position_embedding), self.key(source + beside), self.value(source)
        return self._attend(q, k, v, mask, None, key)


def detr_block(**options: Any) -> TransformerBlockConfig:
    """Make a block's config as `transformer_block` does, of attention with added positions.

    A call of the block takes `position_embedding`, and of one that attends to a memory `memory_position_embedding`, as
    `DetrAttention` does.
    """
    plain = transformer_block(**options)
    attention = DetrAttentionConfig.like(plain.attention)
    return replace(plain, attention=attention, cross=None if plain.cross is None else attention)
