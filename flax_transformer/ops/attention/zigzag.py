"""A layout of the sequence that gives every device the same work under a causal mask.

Of 2 n equal pieces rank i of n has, by the plain layout, pieces 2 i and 2 i + 1: the queries of the last rank see all,
those of the first nearly nothing. By the zigzag layout it has pieces i and 2 n - 1 - i, an early and a late one, which
see as much as any other two of a rank. All functions but `pieces` are for the inside of a `jax.shard_map` over the mesh
axes that split the sequence, `axes`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Shaped


def pieces(rank: Int[Array, ""] | int, ranks: int, zigzag: bool) -> Int[Array, "2"]:
    """Return which of the `2 * ranks` pieces of the sequence a rank has.

    >>> [pieces(rank, 3, True).tolist() for rank in range(3)]
    [[0, 5], [1, 4], [2, 3]]
    """
    return jnp.stack([rank, 2 * ranks - 1 - rank] if zigzag else [2 * rank, 2 * rank + 1])


def to_zigzag(
    x: Shaped[Array, "..."], axis: int, ranks: int, axes: tuple[str, ...] = ("sequence",)
) -> Shaped[Array, "..."]:
    """Send each rank its pieces of the zigzag layout, early piece first, for those of the plain layout."""
    even, odd = jnp.split(x, 2, axis)
    even = jax.lax.ppermute(even, axes, _homes(0, ranks))
    odd = jax.lax.ppermute(odd, axes, _homes(1, ranks))
    return jnp.concatenate(_swap_if_odd_rank(even, odd, axes), axis)


def from_zigzag(
    x: Shaped[Array, "..."], axis: int, ranks: int, axes: tuple[str, ...] = ("sequence",)
) -> Shaped[Array, "..."]:
    """Undo `to_zigzag`."""
    even, odd = _swap_if_odd_rank(*jnp.split(x, 2, axis), axes)
    even = jax.lax.ppermute(even, axes, [(home, rank) for rank, home in _homes(0, ranks)])
    odd = jax.lax.ppermute(odd, axes, [(home, rank) for rank, home in _homes(1, ranks)])
    return jnp.concatenate([even, odd], axis)


def _homes(parity: int, ranks: int) -> list[tuple[int, int]]:
    """Pair each rank with the one its even or odd piece belongs to: no two have the same, as n pieces go to n ranks."""
    owned = ((rank, 2 * rank + parity) for rank in range(ranks))
    return [(rank, piece if piece < ranks else 2 * ranks - 1 - piece) for rank, piece in owned]


def _swap_if_odd_rank(a, b, axes):
    """A rank's early piece is even where the rank is, as piece i belongs to rank i."""
    odd = jax.lax.axis_index(axes) % 2 == 1
    return jnp.where(odd, b, a), jnp.where(odd, a, b)
