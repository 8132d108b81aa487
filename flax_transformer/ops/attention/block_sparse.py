"""Block-sparse attention: to the first and the last block, to the blocks beside one's own, and to some drawn at random.

Axes: B batch, T positions, N heads, H head width; W blocks of C positions, M = W − 2 of which see R drawn blocks each.
Source: BigBird (Zaheer et al. 2020, https://arxiv.org/abs/2007.14062), of which this is the construction with global
tokens of the text itself (ITC). Time and memory are O(T · C · (5 + R)).
"""

import math
from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from einops import rearrange
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.ops.attention.blocks import to_blocks, with_neighbours
from flax_transformer.ops.attention.dispatch import attention
from flax_transformer.ops.attention.xla import masked_softmax
from flax_transformer.ops.eager_call import reused
from flax_transformer.ops.float32 import product, scaled
from flax_transformer.ops.mask import Mask
from flax_transformer.ops.mask_field import check_broadcast
from flax_transformer.ops.remat import attended
from flax_transformer.parallel.explicit import implicit

PUBLISHED = (1024, 3072, 4096)
"""Lengths whose blocks are drawn as for the paper's checkpoints: anywhere in the first 1024 positions."""


@implicit("q")
@reused
def block_sparse_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B T N H"],
    v: Float[Array, "*B T N H"],
    drawn: Int[Array, "N M R"],
    visible: Bool[Array, "*#B T"] | None = None,
    *,
    block: int,
    scale: float | None = None,
) -> Float[Array, "*B T N H"]:
    """Mix values as BigBird does; texts are filled up to whole blocks, of which the last is the global one.

    Args:
      drawn: blocks that each of the inner blocks sees besides, head by head. One that is seen anyway counts again.
      visible: keys that are seen at all; None: all.
      block: C, positions of a block.
      scale: factor on the scores, `1 / sqrt(H)` by default.

    Raises:
      ValueError: shapes that do not fit, or fewer than five blocks.

    >>> x = jnp.arange(5.0).reshape(5, 1, 1)
    >>> y = block_sparse_attention(jnp.zeros_like(x), x, x, jnp.zeros((1, 3, 0), jnp.int32), block=1)
    >>> y.ravel().tolist()  # the second position does not see the fourth, nor the fourth the second
    [2.0, 1.75, 2.0, 2.25, 2.0]
    """
    if not q.shape == k.shape == v.shape:
        raise ValueError(f"blocks are of as many queries, keys and values, got {q.shape}, {k.shape} and {v.shape}")
    *lead, T, N, H = q.shape
    count = -(-T // block)
    if count < 5 or drawn.shape[:2] != (N, count - 2):
        raise ValueError(
            f"block-sparse attention needs at least 5 blocks, and blocks drawn for each but the first and last, [N, M, "
            f"R]; got {T} positions, blocks of {block}, N={N}, drawn {drawn.shape}"
        )
    seen = jnp.ones(T, bool) if visible is None else visible
    check_broadcast("visible", seen.shape, (*lead, T))
    seen = jnp.broadcast_to(seen, (*lead, T))
    scale = 1 / math.sqrt(H) if scale is None else scale
    q, k, v = (rearrange(to_blocks(x, -3, block), "... W C N H -> ... N W C H") for x in (q, k, v))
    seen = to_blocks(seen, -1, block)

    def flat(x):
        return rearrange(x, "... N W C H -> ... (W C) N H")

    ends = attention(
        flat(q[..., :: count - 1, :, :]), flat(k), flat(v), Mask(dense=seen.reshape(*lead, 1, 1, -1)), scale=scale
    )  # fmt: skip
    inner = _inner(q[..., 1:-1, :, :], k, v, drawn, seen, scale)
    first, last = jnp.split(ends, 2, axis=-3)
    y = jnp.concatenate([first, flat(inner), last], axis=-3)
    return attended(y[..., :T, :, :])


def _inner(q: Array, k: Array, v: Array, drawn: Array, seen: Array, scale: float) -> Array:
    """Attend from all blocks but the first and last, [*B, N, M, C, H], to those that they see, [*B, N, W, C, H]."""
    *lead, N, W, C, H = k.shape

    def pick(x):
        return x[..., np.arange(N)[:, None, None], drawn, :, :].reshape(*lead, N, W - 2, -1, H)

    def both(x):
        return jnp.concatenate([x[..., 0, :, :], x[..., -1, :, :]], axis=-2)

    near_k, near_v = (with_neighbours(x, -2, 1, 1)[..., 1:-1, :, :] for x in (k, v))
    near_seen = with_neighbours(seen, -1, 1, 1)[..., 1:-1, :]
    q = scaled(q, scale)
    scores = [
        product("...nmch,...nmsh->...nmcs", q, near_k),
        product("...nmch,...nsh->...nmcs", q, both(k)),
        product("...nmch,...nmsh->...nmcs", q, pick(k)),
    ]
    # The neighbours of the second block and of the last but one are global, and counted there.
    own = np.ones((W - 2, 3 * C), bool)
    own[0, :C] = own[-1, -C:] = False
    ends = jnp.concatenate([seen[..., 0, :], seen[..., -1, :]], axis=-1)
    shown = [
        (near_seen & own)[..., None, :, None, :],
        ends[..., None, None, None, :],
        seen[..., drawn, :].reshape(*lead, N, W - 2, 1, -1),
    ]
    shown = [jnp.broadcast_to(part, score.shape) for part, score in zip(shown, scores, strict=True)]
    weights = masked_softmax(*(jnp.concatenate(each, axis=-1) for each in (scores, shown))).astype(v.dtype)
    near_weights, end_weights, picked = jnp.split(weights, (3 * C, 5 * C), axis=-1)
    return (
        jnp.einsum("...nmcs,...nmsh->...nmch", near_weights, near_v)
        + jnp.einsum("...nmcs,...nsh->...nmch", end_weights, both(v))
        + jnp.einsum("...nmcs,...nmsh->...nmch", picked, pick(v))
    )


@lru_cache
def draw_blocks(
    length: int, *, block: int, count: int, heads: int, max_length: int, seed: int
) -> Int[np.ndarray, "N M R"]:
    """Draw the blocks that each inner block sees besides, as the published models do in training.

    Args:
      length: T, a multiple of the block.
      count: R, blocks to draw.
      max_length: positions of the model, which decide for the lengths in `PUBLISHED`.
      seed: the number of the layer.

    Raises:
      ValueError: where there are not so many blocks to choose from.

    >>> draw_blocks(80, block=8, count=2, heads=1, max_length=80, seed=0)[0, 0].tolist()
    [4, 6]
    """
    draw, rows = np.random.RandomState(seed), length // block
    if rows < least_blocks(count):
        raise ValueError(f"to draw R={count} of them there must be {least_blocks(count)} blocks, got {rows}")
    try:
        if length in PUBLISHED:
            return np.stack([_anywhere(draw, max_length // block, block, count) for _ in range(heads)])[:, : rows - 2]
        return _early(draw, rows, count, heads)
    except ValueError as error:
        raise ValueError(
            f"{count} blocks cannot be drawn of {rows} blocks of {block} positions, {max_length} at most: there are "
            "too few that are not seen anyway"
        ) from error


def _anywhere(draw: np.random.RandomState, blocks: int, size: int, count: int) -> np.ndarray:
    """Draw for all inner blocks of the longest text, of the blocks up to position 1024."""
    middle = np.arange(1, blocks - 1)
    last = 1024 // size - 1 if 2 * size < 1024 else blocks - 1
    found = np.zeros((blocks - 2, count), np.int32)
    for i in range(1, blocks - 1):
        if i <= 2:
            free = middle[i + 1 : last]
        elif i >= blocks - 3 or i - 2 > last:
            free = middle[:last]
        elif i + 1 == last:
            free = middle[: i - 2]
        else:
            free = np.concatenate([middle[: i - 2], middle[i + 1 : last]])
        found[i - 1] = draw.permutation(free)[:count]
    return found


def _early(draw: np.random.RandomState, blocks: int, count: int, heads: int) -> np.ndarray:
    """Draw for all inner blocks, of the first few blocks of the text."""
    end = least_blocks(count) - 1
    found = np.zeros((heads, blocks, count), np.int32)
    for row in range(1, blocks):
        known = {row - 1, row, row + 1, 0, end - 1} | ({end - 2} if row == 1 else set())
        known |= {1} if row == end - 2 else set()
        for head in range(heads):
            free = [each for each in draw.permutation(np.arange(end)) if each not in known]
            found[head, row] = free[:count]
    return found[:, 1:-1]


def least_blocks(count: int) -> int:
    """Return how many blocks a text must have, that it pays to see some and draw `count` besides."""
    return 2 * count + 6
