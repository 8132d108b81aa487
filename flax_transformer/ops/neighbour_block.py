"""Sparse patterns by blocks: which positions there are, what of a block is visible, shares of several kinds of keys.

Used by `ops.strided_sparse` and `ops.fixed_sparse` (Child et al. 2019, https://arxiv.org/abs/1904.10509), whose blocks
are as long as their stride.

Axes: B batch, I blocks, T positions in a block of queries, S keys of a block, K key/value heads, G query heads to each,
H head width. What is looped over has I first.
"""

import jax
import jax.numpy as jnp
from einops import rearrange
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.ops.float32 import product
from flax_transformer.ops.mask import Mask
from flax_transformer.ops.score_block import pad_block
from flax_transformer.ops.xla import masked_softmax


def to_blocks(x: Float[Array, "*B T N H"], size: int) -> Float[Array, "I *B size N H"]:
    """Cut positions into blocks, the last one filled up with zeros."""
    return rearrange(pad_block(x, -3, size), "... (I t) N H -> I ... t N H", t=size)


def from_blocks(x: Float[Array, "I *B size N H"], T: int) -> Float[Array, "*B T N H"]:
    """Undo `to_blocks`."""
    return rearrange(x, "I ... t N H -> ... (I t) N H")[..., :T, :, :]


def with_neighbours(blocks: Float[Array, "I *B size K H"], left: int, right: int) -> Float[Array, "I *B S K H"]:
    """Put the blocks before and after each block around it; beyond the ends there are zeros."""
    count = len(blocks)
    padded = jnp.pad(blocks, [(left, right)] + [(0, 0)] * (blocks.ndim - 1))
    return jnp.concatenate([padded[at : at + count] for at in range(left + 1 + right)], axis=-3)


def seen_by(mask: Mask, length: int, rows: Int[Array, "T"], columns: Int[Array, "#T S"]) -> Bool[Array, "*#B #N T S"]:
    """Say which keys at these positions the mask shows to queries at those; what is outside of the text is hidden."""
    inside = ((columns >= 0) & (columns < length))[None]
    ahead = columns - rows[:, None]
    if mask.causal:
        inside &= ahead <= 0
    if mask.window is not None:
        inside &= (ahead >= -mask.window[0]) & (ahead <= mask.window[1])
    if mask.lengths is not None:
        inside = inside & (columns < mask.lengths[..., None, None, None])
    if mask.segments is not None:
        each = zip(mask.segments, (rows, columns), strict=True)
        query, key = (jnp.take(ids, at, axis=-1, mode="clip") for ids, at in each)
        inside = inside & (query[..., :, None] == key)[..., None, :, :]
    return inside


def attend_neighbours(
    q: Float[Array, "*B T N H"],
    neighbours: tuple[Float[Array, "*B S K H"], Float[Array, "*B S K H"]],
    seen: Bool[Array, "*#B #N T S"],
    scale: float,
    far: tuple[Float[Array, "*B I T K H"], Float[Array, "*B I T K H"]] | None = None,
    far_seen: Bool[Array, "*#B #N T I"] | None = None,
) -> Float[Array, "*B T N H"]:
    """Attend from a block of queries to keys that all of them may see, and to I keys of each query's own.

    Args:
      neighbours: keys and values.
      seen: which of them each query sees.
      far: keys and values, of query t those at its own place in I blocks.
      far_seen: which of those.
    """
    (k, v), K = neighbours, neighbours[0].shape[-2]
    q = rearrange(q, "... T (K G) H -> ... T K G H", K=K)
    scores = [product("...tkgh,...skh->...kgts", q, k)]
    if far is not None:
        scores.append(product("...tkgh,...itkh->...kgti", q, far[0]))
        lead = jnp.broadcast_shapes(seen.shape[:-1], far_seen.shape[:-1])
        seen = jnp.concatenate([jnp.broadcast_to(x, (*lead, x.shape[-1])) for x in (seen, far_seen)], axis=-1)
    flat = rearrange(jnp.concatenate(scores, axis=-1) * scale, "... K G T S -> ... (K G) T S")
    weights = rearrange(masked_softmax(flat, seen), "... (K G) T S -> ... K G T S", K=K).astype(v.dtype)
    out = jnp.einsum("...kgts,...skh->...tkgh", weights[..., : k.shape[-3]], v)
    if far is not None:
        out = out + jnp.einsum("...kgti,...itkh->...tkgh", weights[..., k.shape[-3] :], far[1])
    return rearrange(out, "... T K G H -> ... T (K G) H")


def over_blocks(mix, *blocks):
    """Mix block by block; the backward pass computes each block's shares again."""
    return jax.lax.map(jax.checkpoint(lambda block: mix(*block)), blocks)
