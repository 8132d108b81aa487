"""Attention to a window around each position, at a cost of O(T · window) (Luong et al. 2015, §3.2,
https://arxiv.org/abs/1508.04025; sliding windows as in Beltagy et al. 2020, https://arxiv.org/abs/2004.05150).

The same numbers as `attention(…, Mask(window=…))`, by `ops.blockwise`, of which no block beyond the window is visited.

Axes as in `attention`.
"""

from jax import ShapeDtypeStruct
from jaxtyping import Array

from flax_transformer.frozen import frozen
from flax_transformer.ops.blockwise import blockwise_attention
from flax_transformer.ops.mask import Mask
from flax_transformer.ops.mask_field import window_sides
from flax_transformer.ops.variant import EVERY_MASK, Variant, placeless

_LEAST = 128
"""A block has no fewer positions: matrices as wide as the units that multiply them."""


@frozen
class LocalAttention(Variant):
    """Softmax attention to `window` keys on either side, and of a causal mask to those before alone.

    >>> import jax.numpy as jnp
    >>> q, v = jnp.zeros((3, 1, 1)), jnp.array([[[0.0]], [[2.0]], [[6.0]]])
    >>> LocalAttention(window=1)(q, q, v, Mask(causal=True))[:, 0, 0]
    Array([0., 1., 4.], dtype=float32)
    """

    window: tuple[int, int] | int | None
    """Keys to the left and to the right of a query's own position, as in `Mask`. It may be wider than the text."""

    name = "local"
    able = EVERY_MASK | {"bias", "cross", "scale"}

    def __post_init__(self):
        object.__setattr__(self, "window", window_sides(self.window) or (-1, -1))
        if min(self.window) < 0:
            raise ValueError("local attention needs a window, got None")

    def limit(self, q: Array | ShapeDtypeStruct, k: Array | ShapeDtypeStruct, mask: Mask) -> str | None:
        """Refuse queries whose places among the keys are not told, as those of beams in a cache."""
        return placeless(q, k, mask)

    def mix(self, q: Array, k: Array, v: Array, mask: Mask, bias: Array | None, scale: float, dropout: None) -> Array:
        """Attend block by block."""
        mask = mask & Mask(window=self.window)
        far = max(mask.window or self.window)
        block = max(_LEAST, 1 << max(far - 1, 0).bit_length())
        return blockwise_attention(q, k, v, mask, bias, scale, block=block)
