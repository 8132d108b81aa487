"""Attention to a window around each position, at a cost of O(T · window) (Luong et al. 2015, §3.2,
https://arxiv.org/abs/1508.04025; sliding windows as in Beltagy et al. 2020, https://arxiv.org/abs/2004.05150).

The same numbers as `attention(…, Mask(window=…))`, by `ops.blockwise`, of which no block beyond the window is visited.

Axes as in `attention`.
"""

from dataclasses import replace

from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.ops.attention.blockwise import BlockwiseAttention
from flax_transformer.ops.attention.call import MASKS, Call
from flax_transformer.ops.attention.function import AttentionFunction
from flax_transformer.ops.mask import Mask
from flax_transformer.ops.mask_field import window_sides

_LEAST = 128
"""A block has no fewer positions: matrices as wide as the units that multiply them."""


@frozen
class LocalAttention(AttentionFunction):
    """Softmax attention to `window` keys on either side, and of a causal mask to those before alone.

    >>> import jax.numpy as jnp
    >>> q, v = jnp.zeros((3, 1, 1)), jnp.array([[[0.0]], [[2.0]], [[6.0]]])
    >>> LocalAttention(window=1)(q, q, v, Mask(causal=True))[:, 0, 0]
    Array([0., 1., 4.], dtype=float32)
    """

    window: tuple[int, int] | int | None
    """Keys to the left and to the right of a query's own position, as in `Mask`. It may be wider than the text."""

    name = "local"
    supports = MASKS | {"bias", "cross", "scale"}

    def __post_init__(self):
        object.__setattr__(self, "window", window_sides(self.window) or (-1, -1))
        if min(self.window) < 0:
            raise ValueError("local attention needs a window, got None")

    def limit(self, call: Call) -> str | None:
        """Refuse queries whose positions among the keys a dense mask hides, as those of beams in a cache."""
        if call.mask.dense is None or len({*call.lengths}) == 1:
            return None
        return (
            "it goes by positions, which a dense mask of other queries than keys (beams, padded rows of a cache) hides"
        )

    def run(self, call: Call) -> Float[Array, "*B T N H"]:
        """Attend block by block."""
        mask = call.mask & Mask(window=self.window)
        far = max(mask.window or self.window)
        block = max(_LEAST, 1 << max(far - 1, 0).bit_length())
        return BlockwiseAttention(block=block).run(replace(call, mask=mask))
