"""A block whose attention is told more than a mask: which tokens all others see, which blocks of keys were drawn.

Axes: B batch, T positions, D width.
"""

from functools import partial
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.nn.attention import AttentionConfig
from flax_transformer.nn.block import Block, BlockConfig, transformer_block
from flax_transformer.ops import Mask
from flax_transformer.ops.routing import real_positions


@frozen
class SparseBlockConfig(BlockConfig):
    """A block that passes what it is told besides on to its attention; `sparse_block` writes it shorter."""

    def build(self, rngs: nnx.Rngs) -> "SparseBlock":
        """Make the block."""
        return SparseBlock(self, rngs=rngs)


def sparse_block(kind: type[AttentionConfig], **options: Any) -> SparseBlockConfig:
    """Make a block's config as `transformer_block` does, of attention of a kind of its own.

    Args:
      kind: the config of self-attention, whose further fields have defaults.
      options: as `transformer_block`'s.
    """
    plain = transformer_block(**options)
    attention = kind(**vars(plain.attention))
    return SparseBlockConfig(attention=attention, feedforward=plain.feedforward, residual=plain.residual)


class SparseBlock(Block):
    """A block for an encoder whose attention takes arguments of its own."""

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        *,
        mask: Mask | None = None,
        drop_path: Float[Array, ""] | float | None = None,
        key: PRNGKeyArray | None = None,
        **told: Any,
    ) -> Float[Array, "*B T D"]:
        """Apply the block.

        Args:
          mask, drop_path, key: as a `Block`'s.
          told: what its attention is given besides.
        """
        keys = (None,) * 3 if key is None else jax.random.split(key, 3)
        x = self._given(x, None)
        attend = partial(self.attention, mask=mask, **told)
        x = self.attention_residual(x, attend, key=keys[0], drop_path=drop_path)
        return self._rest(x, None, None, keys, drop_path, real=partial(real_positions, mask, x.shape[-2]))[0]
