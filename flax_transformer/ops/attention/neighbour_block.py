"""Sparse patterns by blocks: what of a block is visible, and attention to keys of several kinds.

Used by `ops.strided_sparse` and `ops.fixed_sparse` (Child et al. 2019, https://arxiv.org/abs/1904.10509), whose blocks
are as long as their stride.

Axes: B batch, I blocks, T positions in a block of queries, S keys of a block, K key/value heads, G query heads to each,
H head width.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from einops import rearrange
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.ops.attention.xla import masked_softmax
from flax_transformer.ops.float32 import product
from flax_transformer.ops.mask import Mask
from flax_transformer.ops.mask_field import within


def seen_by(mask: Mask, length: int, rows: Int[Array, "T"], columns: Int[Array, "#T S"]) -> Bool[Array, "*#B #N T S"]:
    """Return which keys at these positions queries at those see by the mask; what is outside of the text is hidden."""
    inside = ((columns >= 0) & (columns < length))[None]
    inside &= within(columns - rows[:, None], mask.causal, mask.window)
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
      far: keys and values, of query t those at its own position in each of I blocks.
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


def over_blocks(
    attend: Callable[..., Float[Array, "*B C N H"]], *blocks: Float[Array, "*B W _ _ H"]
) -> Float[Array, "*B W C N H"]:
    """Attend block by block, given each its number; the backward pass computes each block's weights again."""
    first = (jnp.arange(blocks[0].shape[-4]), *(jnp.moveaxis(x, -4, 0) for x in blocks))
    return jnp.moveaxis(jax.lax.map(jax.checkpoint(lambda block: attend(*block)), first), 0, -4)
