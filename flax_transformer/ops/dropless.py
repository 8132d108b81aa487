"""Experts that compute the tokens which are sent to them and no others, and drop none (MegaBlocks, Gale et al. 2022,
https://arxiv.org/abs/2211.15841).

Visits of tokens to experts are sorted by expert and cut into blocks, each of one expert. A loop over the blocks reads
the kernels of one expert at a time, and so does its derivative: no array has every token at every expert.

Axes: N tokens, A experts that a token is sent to, V = N · A visits, E experts, K blocks of S visits, D width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.tree_util import PyTreeDef
from jaxtyping import Array, Float, Int, Key

from flax_transformer.ops.float32 import at_least_float32, widen
from flax_transformer.ops.linear_map import in_one_piece, linear_map
from flax_transformer.ops.remat import AGAIN

EXPECTED = "turns-expected-"
"""Name of the scope of a loop that ends when all is done; a number follows, as often as it turns if tokens choose
evenly."""

LEAST, MOST = 16, 512
"""Visits of a block: fewer make products that are too small, more leave too many places empty."""


# Part of JAX's cache keys, so that no function traced outside of `all_at_once` is taken for one inside, or the reverse.
_all_at_once = jax.make_user_context(False)


@contextmanager
def all_at_once() -> Iterator[None]:
    """Compute, while tracing inside, every token at every expert, in one product: for translators that know no loops
    over blocks, and programs for any number of tokens."""
    with _all_at_once(True):
        yield


class Blocks(NamedTuple):
    """Which visits are in which block."""

    expert: Int[Array, "K"]
    """Whose block each is."""
    visits: Int[Array, "K S"]
    """Numbers of visits in growing order; where there is none, numbers from V on, each another one."""
    used: Int[Array, ""]
    """How many blocks have visits: the first ones."""


def cut(chosen: Int[Array, "V"], E: int, size: int) -> Blocks:
    """Sort visits by their expert, and cut those of each into blocks of `size`.

    Args:
        chosen: the expert of each visit; numbers from E on are visits to none of these experts, and in no block.

    >>> expert, visits, used = cut(jnp.array([1, 0, 1, 2, 1]), 3, 2)
    >>> expert.tolist(), visits.tolist(), int(used)
    ([0, 1, 1, 2], [[1, 6], [0, 2], [4, 6], [3, 6]], 4)
    """
    V = chosen.shape[0]
    K = block_count(V, E, size)
    counts = jnp.bincount(chosen, length=E)
    ends, last = jnp.cumsum(-(-counts // size)), jnp.cumsum(counts)
    number = jnp.arange(K)
    expert = jnp.minimum((number[:, None] >= ends).sum(-1), E - 1)
    before = ends[expert] - -(-counts[expert] // size)
    place = (number - before)[:, None] * size + jnp.arange(size)
    order = jnp.argsort(chosen, stable=True)
    there = place < counts[expert][:, None]
    visits = order.at[(last - counts)[expert][:, None] + place].get(mode="fill", fill_value=0)
    return Blocks(expert, jnp.where(there, visits, V + jnp.arange(size)), ends[-1])


def block_count(V: int, E: int, size: int) -> int:
    """Return how many blocks V visits of E experts may fill: each expert's last one need not be full.

    >>> block_count(5, 3, 2), block_count(1, 8, 16)
    (4, 1)
    """
    some = min(E, V) if isinstance(V, int) else E  # nothing is known of a symbol
    return some + (V - some) // size


def block_size(N: int, A: int, E: int) -> int:
    """Return how many visits a block has: a power of two, at most a quarter of an expert's even share if that is long,
    and no more than there are tokens, each of which visits an expert once.

    Of a size that is a symbol, as in a program for any number of rows, nothing is known.

    >>> block_size(2048, 2, 8), block_size(1, 8, 128), block_size(1 << 20, 1, 8)
    (128, 1, 512)
    """
    if not isinstance(N, int):
        return LEAST
    return min(max(_power(N * A // (4 * E)), LEAST), MOST, _power(2 * N - 1))


def _power(number: int) -> int:
    """Return the largest power of two up to a number; 1 for less."""
    return 1 << max(number, 1).bit_length() - 1


def apply_chosen(
    run: Callable[[Any, Array, Any], Array],
    experts: Any,
    x: Float[Array, "N D"],
    chosen: Int[Array, "N A"],
    weights: Float[Array, "N A"],
    *,
    first: Int[Array, ""] | int = 0,
    keys: Key[Array, "N"] | None = None,
    total: int | None = None,
) -> Float[Array, "N D"]:
    """Add up what each token's experts make of it, weighted, in float32 at least.

    Args:
        run: a module-level function of an expert, of tokens [S, D] and of a key for each, or None.
        experts: a pytree whose leaves have a leading E.
        chosen: the numbers of each token's experts, no one twice; of others than these E nothing is added.
        first: the number of the first of these experts.
        keys: of the tokens, for what is random in an expert; each expert has another key of a token.
        total: how many experts there are, of which these are some. Then the loop ends with the last visit to one of
            them; else it always turns as often as it may have to, and a GPU need not ask after each block.

    >>> chosen, weights = jnp.array([[0], [1]]), jnp.ones((2, 1))
    >>> apply_chosen(lambda scale, x, key: scale * x, jnp.array([2.0, 3.0]), jnp.ones((2, 1)), chosen, weights).tolist()
    [[2.0], [3.0]]
    """
    leaves, tree = jax.tree.flatten(experts)
    E, A = len(leaves[0]), chosen.shape[-1]
    if _all_at_once.value:
        numbers = jnp.arange(E) + first
        made = jax.vmap(lambda expert, number: widen(run(expert, x, _drawing(keys, number))))(experts, numbers)
        gates = (jax.nn.one_hot(chosen - first, E, dtype=made.dtype) * weights[..., None]).sum(-2)
        return jnp.einsum("ne,end->nd", gates, made)
    moving = tuple(leaf if jnp.issubdtype(leaf.dtype, jnp.inexact) else None for leaf in leaves)
    still = tuple(None if leaf is not None else other for leaf, other in zip(moving, leaves, strict=True))
    mine = chosen.reshape(-1) - first
    blocks = cut(jnp.where((mine >= 0) & (mine < E), mine, E), E, block_size(x.shape[0], A, E))
    K = blocks.expert.shape[0]
    every = total in (None, E) and isinstance(K, int)
    how = _How(run, tree, A, None if every else -(-K * E // (total or E)))
    return _apply(how, _Given(still, blocks, keys, jnp.asarray(first)), (moving, x, weights.reshape(-1)))


class _Given(NamedTuple):
    still: tuple[Array | None, ...]
    blocks: Blocks
    keys: Array | None
    first: Array


class _How(NamedTuple):
    run: Callable
    tree: PyTreeDef
    active: int
    expected: int | None
    """Blocks that have visits if tokens choose evenly, where the loop ends after the last that has; None: all turn."""


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _apply(how: _How, given: _Given, moving: tuple) -> Array:
    return _forward((given, moving), how=how)


@partial(_apply.defjvp, symbolic_zeros=True)
def _derive(how: _How, primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    moved = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype) if _zero(leaf) else leaf, tangents[1])
    return in_one_piece(_forward, primals, how=how), linear_map(_tangent, _pulled, primals, moved, how=how)


def _zero(leaf: Any) -> bool:
    return isinstance(leaf, SymbolicZero)


def _forward(pair: tuple, *, how: _How) -> Array:
    def turn(number: Array, y: Array) -> Array:
        value, tokens = _value(how, pair[0], number)
        return _add(y, tokens, value(*_parts(how, pair[0], pair[1], number)))

    return _loop(how, pair[0].blocks, turn, _like(pair[1][1]))


def _tangent(pair: tuple, moved: tuple, *, how: _How) -> Array:
    def turn(number: Array, y: Array) -> Array:
        value, tokens = _value(how, pair[0], number)
        parts, tangents = (_parts(how, pair[0], each, number) for each in (pair[1], moved))
        return _add(y, tokens, jax.jvp(value, parts, tangents)[1])

    return _loop(how, pair[0].blocks, turn, _like(pair[1][1]))


def _pulled(pair: tuple, y: Array, *, how: _How) -> tuple:
    def turn(number: Array, sums: tuple) -> tuple:
        value, tokens = _value(how, pair[0], number)
        expert, visits = pair[0].blocks.expert[number], pair[0].blocks.visits[number]
        with jax.named_scope(AGAIN):
            pull = jax.vjp(value, *_parts(how, pair[0], pair[1], number))[1]
        leaves, x, weights = pull(_rows(y, tokens))
        leaves = jax.tree.map(lambda total, part: total.at[expert].add(part.astype(total.dtype)), sums[0], leaves)
        return leaves, _add(sums[1], tokens, x), sums[2].at[visits].set(weights, mode="drop", unique_indices=True)

    sums = _loop(how, pair[0].blocks, turn, jax.tree.map(_like, pair[1]))
    return jax.tree.map(lambda total, leaf: total.astype(leaf.dtype), sums, pair[1])


def _loop(how: _How, blocks: Blocks, turn: Callable, start: Any) -> Any:
    if how.expected is None:
        return jax.lax.fori_loop(0, blocks.expert.shape[0], turn, start)
    with jax.named_scope(f"{EXPECTED}{how.expected}"):
        return jax.lax.fori_loop(0, blocks.used, turn, start)


def _drawing(keys: Array | None, expert: Array) -> Array | None:
    """Return the keys that an expert has for tokens, which have these."""
    return None if keys is None else jax.vmap(jax.random.fold_in, (0, None))(keys, expert)


def _value(how: _How, given: _Given, number: Array) -> tuple[Callable, Array]:
    """Return what is computed of a block, as a function of its parts of what may move, and its tokens."""
    expert = given.blocks.expert[number]
    tokens = given.blocks.visits[number] // how.active
    still = jax.tree.map(lambda leaf: leaf[expert], given.still)
    keys = None if given.keys is None else given.keys.at[tokens].get(mode="clip")
    keys = _drawing(keys, expert + given.first)

    def value(leaves: tuple, x: Array, weights: Array) -> Array:
        every = (other if leaf is None else leaf for leaf, other in zip(leaves, still, strict=True))
        return widen(how.run(jax.tree.unflatten(how.tree, every), x, keys)) * weights[:, None]

    return value, tokens


def _parts(how: _How, given: _Given, moving: tuple, number: Array) -> tuple:
    """Return a block's part of leaves of experts, of tokens and of weights."""
    (leaves, x, weights), visits = moving, given.blocks.visits[number]
    expert = given.blocks.expert[number]
    return (
        jax.tree.map(lambda leaf: leaf[expert], leaves), _rows(x, visits // how.active), _rows(weights, visits)
    )  # fmt: skip


def _rows(x: Array, rows: Array) -> Array:
    return x.at[rows].get(mode="fill", fill_value=0, unique_indices=True, indices_are_sorted=True)


def _add(total: Array, rows: Array, y: Array) -> Array:
    return total.at[rows].add(y.astype(total.dtype), mode="drop", unique_indices=True, indices_are_sorted=True)


def _like(x: Array) -> Array:
    return jnp.zeros(x.shape, at_least_float32(x.dtype))
