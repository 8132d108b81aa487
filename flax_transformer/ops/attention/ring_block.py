"""A block of scores in the ring: where it lies in the whole, whether the mask hides it, what is in it.

Axes as in `attention`, heads as K G and before positions; t queries and s keys make a block. A rank is a place along
the mesh axes that split the sequence; x are the operands as a device has them. All is for inside a `jax.shard_map`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from einops import rearrange
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.frozen import frozen
from flax_transformer.ops.attention.blockwise import block_scores
from flax_transformer.ops.attention.score_block import cut_block
from flax_transformer.ops.attention.zigzag import pieces
from flax_transformer.ops.dropout import keep_part, keep_scale
from flax_transformer.ops.mask import Mask


@frozen
class RingSpec:
    """What is static.

    Attributes:
        ranks: devices that the sequence is split over.
        query_piece: queries in one of the two pieces of a rank.
        key_piece: keys in one.
        rows: queries in a block.
        columns: keys in a block.
        scale: factor on the scores.
        causal: the mask's; decides whether pieces lie in zigzag.
        window: the mask's.
        rate: of dropout.
        drawn: shape of the array that dropout draws a part of.
        axes: of the mesh, that the sequence is split over.
    """

    ranks: int
    query_piece: int
    key_piece: int
    rows: int
    columns: int
    scale: float
    causal: bool
    window: tuple[int, int] | None
    rate: float
    drawn: tuple[int, ...]
    axes: tuple[str, ...] = ("sequence",)


class Spot(NamedTuple):
    """A block of scores: its place among the device's queries and keys, its first query and key in the whole."""

    i: Array
    j: Array
    row: Array
    column: Array


def spot_of(plan: RingSpec, rank: Int[Array, ""], source: Int[Array, ""], i: Int[Array, ""], j: Int[Array, ""]) -> Spot:
    """Find block i of a rank's queries against block j of the keys that come from rank `source`."""

    def first(rank, index, block, piece):
        which, inside = jnp.divmod(index * block, piece)
        return pieces(rank, plan.ranks, plan.causal)[which] * piece + inside

    return Spot(i, j, first(rank, i, plan.rows, plan.query_piece), first(source, j, plan.columns, plan.key_piece))


def reaches(plan: RingSpec, limits: Int[Array, "3"], spot: Spot) -> Bool[Array, ""]:
    """Return whether any query of the block may see any of its keys, by position and length alone.

    Args:
        limits: in the batch, the largest of the mask's lengths and the smallest and largest of its offsets.
    """
    longest, least, most = limits
    left, right = plan.window or (None, None)
    right = 0 if plan.causal else right
    reach = spot.column < longest
    if right is not None:
        reach &= most + spot.row + plan.rows - 1 + right >= spot.column
    if left is not None:
        reach &= least + spot.row - left < spot.column + plan.columns
    return reach


def masked_scores(
    plan: RingSpec,
    x: dict[str, Array],
    segments: Int[Array, "*#B S"] | None,
    q_i: Float[Array, "*B K G t H"],
    k_j: Float[Array, "*B K s H"],
    spot: Spot,
) -> Float[Array, "*B K G t s"]:
    """Compute the masked scores, float32 or more, of a block, given the segments of the keys that are here."""
    if segments is not None:
        own = cut_block(x["query_segments"], -1, spot.i, plan.rows)
        segments = own, cut_block(segments, -1, spot.j, plan.columns)
    wide = spot.column // plan.columns
    part = Mask(
        causal=plan.causal,
        window=plan.window,
        lengths=x["lengths"] - spot.column,
        segments=segments,
        dense=cut_block(cut_block(x["dense"], -2, spot.i, plan.rows), -1, wide, plan.columns) if "dense" in x else None,
        offset=x["offset"] + spot.row - spot.column,
    )
    return block_scores(plan.scale, q_i, k_j, part, x.get("bias"), spot.i, wide)


def dropper(
    plan: RingSpec, x: dict[str, Array], spot: Spot
) -> Callable[[Float[Array, "*B K G t s"]], Float[Array, "*B K G t s"]]:
    """Make the function that drops what the call on one device would drop of a block."""
    if not plan.rate:
        return lambda weights: weights
    rank = len(plan.drawn)
    at = {rank - 2: spot.row + jnp.arange(plan.rows), rank - 1: spot.column + jnp.arange(plan.columns)}
    keep = keep_part(x["key"], plan.drawn, plan.rate, at | ({0: x["batch"]} if "batch" in x else {}))
    keep = rearrange(keep, "... (K G) t s -> ... K G t s", K=x["k"].shape[-2])
    return lambda weights: jnp.where(keep, weights * keep_scale(plan.rate), 0)
