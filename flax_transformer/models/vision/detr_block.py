"""DETR's block: positions are added to queries and keys in every layer, never to values (Carion et al. 2020,
https://arxiv.org/abs/2005.12872)."""

from functools import partial
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.nn.attention import Attention, AttentionConfig
from flax_transformer.nn.block import Block, BlockConfig, transformer_block
from flax_transformer.nn.check import check_hidden
from flax_transformer.ops import Mask


@frozen
class DetrAttentionConfig(AttentionConfig):
    """Attention whose queries and keys have positions added."""

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
        places: Float[Array, "*#B T D"],
        memory_places: Float[Array, "*#B S D"] | None = None,
        mask: Mask | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Attend.

        Args:
          memory: what to attend to; None is self-attention.
          places: positions of x.
          memory_places: those of the memory.
          mask: what each query may see.
          key: for attention dropout; None means none.

        Raises:
          ValueError: shapes that do not fit.
        """
        self._check(x)
        source, beside = (x, places) if memory is None else (memory, memory_places)
        check_hidden(source, self.cfg.embed, "memory")
        q, k, v = self.query(x + places), self.key(source + beside), self.value(source)
        return self._attend(q, k, v, mask, None, key)


@frozen
class DetrBlockConfig(BlockConfig):
    """A block whose attention has positions added; `detr_block` writes it shorter."""

    attention: DetrAttentionConfig
    """Self-attention, with positions added to queries and keys."""
    cross: DetrAttentionConfig | None = None
    """Attention to the image, in blocks of the decoder; None: an encoder's block."""

    def build(self, rngs: nnx.Rngs) -> "DetrBlock":
        """Make the block."""
        return DetrBlock(self, rngs=rngs)


def detr_block(**options: Any) -> DetrBlockConfig:
    """Make a block's config as `transformer_block` does, of attention with added positions."""
    plain = transformer_block(**options)
    fields = {name: value for name, value in vars(plain.attention).items()}
    attention = DetrAttentionConfig(**fields)
    cross = None if plain.cross is None else attention
    return DetrBlockConfig(attention=attention, cross=cross, feedforward=plain.feedforward, residual=plain.residual)


class DetrBlock(Block):
    """A block that is told the positions of what it is given."""

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        memory: Float[Array, "*B S D"] | None = None,
        *,
        places: Float[Array, "*#B T D"],
        memory_places: Float[Array, "*#B S D"] | None = None,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        drop_path: Float[Array, ""] | float | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Apply the block; arguments as `Block`'s and `DetrAttention`'s."""
        keys = (None,) * 3 if key is None else jax.random.split(key, 3)
        x = self._given(x, memory)
        attend = partial(self.attention, places=places, mask=mask)
        x = self.attention_residual(x, attend, key=keys[0], drop_path=drop_path)
        if memory is not None:
            look = partial(self.cross, memory=memory, places=places, memory_places=memory_places, mask=memory_mask)
            x = self.cross_residual(x, look, key=keys[1], drop_path=drop_path)
        return self.feedforward_residual(x, self.feedforward, key=keys[2], drop_path=drop_path)
