"""Attention in sliding windows, block by block: time and memory O(T · w), beside keys that every query sees.

Axes: B batch, T positions, N heads, H head width, G shared keys; W blocks of C positions, of which each looks at the S
keys of its own block and of its neighbours. Source: Longformer (Beltagy et al. 2020, https://arxiv.org/abs/2004.05150).
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from flax_transformer.ops.attention.blocks import from_blocks, to_blocks, with_neighbours
from flax_transformer.ops.attention.xla import drop_weights, masked_softmax
from flax_transformer.ops.dropout import Dropout
from flax_transformer.ops.eager_call import reused
from flax_transformer.ops.float32 import product, scaled
from flax_transformer.ops.mask_field import check_broadcast, window_sides, within
from flax_transformer.ops.remat import attended
from flax_transformer.parallel.explicit import implicit

LEAST = 16
"""Positions of a block at least, where there are as many: narrower windows make products that are too small."""


@implicit("q")
@reused
def sliding_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B T N H"],
    v: Float[Array, "*B T N H"],
    visible: Bool[Array, "*#B T"] | None = None,
    shared: tuple[Float[Array, "*B G N H"], Float[Array, "*B G N H"], Bool[Array, "*B G"]] | None = None,
    *,
    window: tuple[int, int] | int,
    scale: float | None = None,
    dropout: Dropout | None = None,
) -> Float[Array, "*B T N H"]:
    """Mix the values of a window around each position, and of keys that all positions see, by one softmax.

    It is `attention` with `Mask(window=window)`, without the scores that the mask hides; a query that sees no key gets
    zeros. A window may be wider than the text.

    Args:
      visible: keys that are seen at all, where a window has them; None: all.
      shared: keys, values and which of them are seen, of every query, wherever it is.
      window: how many keys to the left and to the right of its own position a query sees; `w` means `(w, w)`.
      scale: factor on the scores, `1 / sqrt(H)` by default.
      dropout: drops attention weights.

    Raises:
      ValueError: shapes that do not fit.

    >>> q, v = jnp.zeros((4, 1, 1)), jnp.arange(4.0).reshape(4, 1, 1)
    >>> sliding_attention(q, q, v, window=(1, 0)).ravel().tolist()
    [0.0, 0.5, 1.5, 2.5]
    """
    if not q.shape == k.shape == v.shape:
        raise ValueError(
            f"windows are of as many queries, keys and values, got {q.shape}, {k.shape} and {v.shape}; `equal_heads` "
            "gives as many heads"
        )
    *lead, T, _, H = q.shape
    window = window_sides(window)
    size = min(max(*window, LEAST), max(T, 1))
    seen = jnp.ones(T, bool) if visible is None else visible
    check_broadcast("visible", seen.shape, (*lead, T))
    q = to_blocks(scaled(q, 1 / math.sqrt(H) if scale is None else scale), -3, size)
    left, right = (int(side > 0 and size < T) for side in window)
    k, v, seen = (
        with_neighbours(to_blocks(x, axis, size), axis, left, right) for x, axis in ((k, -3), (v, -3), (seen, -1))
    )
    scores = product("...wcnh,...wsnh->...wncs", q, k)
    # Of every key of a block's neighbourhood, how far it is ahead of every query of the block.
    ahead = np.arange(-left * size, (1 + right) * size) - np.arange(size)[:, None]
    shown = jnp.broadcast_to(within(ahead, False, window) & seen[..., None, None, :], scores.shape)
    if shared is not None:
        more = product("...wcnh,...gnh->...wncg", q, shared[0])
        scores = jnp.concatenate([more, scores], axis=-1)
        known = jnp.broadcast_to(shared[2][..., None, None, None, :], more.shape)
        shown = jnp.concatenate([known, shown], axis=-1)
    weights = drop_weights(masked_softmax(scores, shown), dropout).astype(v.dtype)
    first = 0 if shared is None else shared[0].shape[-3]
    y = jnp.einsum("...wncs,...wsnh->...wcnh", weights[..., first:], v)
    if shared is not None:
        y = y + jnp.einsum("...wncg,...gnh->...wcnh", weights[..., :first], shared[1])
    return attended(from_blocks(y, -3, T))
