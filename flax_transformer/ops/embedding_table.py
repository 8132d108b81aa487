"""Tables of embeddings on many devices: each has one of its own, whose gradients are summed when all uses are added up.

A table may be one, [V, D], or one for each device, [n, V, D] as `spread` makes them. All functions here take both. Few
tokens are looked up where the columns of a table lie, and what was found is exchanged: less than the table is sent.

Axes: n devices that share out tokens, B batch (any number of axes), V vocabulary, D model width.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from flax_transformer.ops.device_map import device_map, places, sharing, summable
from flax_transformer.ops.eager_call import reused
from flax_transformer.ops.float32 import widen
from flax_transformer.ops.float32_product import float32_product
from flax_transformer.ops.linear_map import linear_map
from flax_transformer.parallel.axis import auto_axes, mesh_axes
from flax_transformer.parallel.explicit import implicit


@reused
def spread(table: Float[Array, "V D"]) -> Float[Array, "n V D"]:
    """Gather a table for each device that has tokens of its own, once; its gradient is summed once.

    However often a table is used, devices add up what they have of its gradient before they tell each other. It is
    whole on each device meanwhile, as is the table. Without a mesh there is one.

    >>> spread(jnp.eye(3, 2)).shape
    (1, 3, 2)
    """
    every = sharing()
    if not every:
        return table[None]
    columns, sizes = tuple(axis for axis in mesh_axes("embed") if axis in every), auto_axes()
    split = columns and table.shape[1] % math.prod(sizes[axis] for axis in columns) == 0

    def gather(part: Array) -> Array:
        whole = jax.lax.all_gather(part, columns) if split else part[None]
        return jnp.moveaxis(whole, 0, 1).reshape(1, part.shape[0], -1)

    # In the backward pass the gather is a sum over its axis, in parts; over the others shard_map itself sums.
    given = PartitionSpec(None, columns if split else None)
    own = device_map(gather, given=(given,), made=PartitionSpec(every), axes=every)(summable(table))
    return own.astype(table.dtype)


def settled(table: Float[Array, "V D"], hidden: Float[Array, "*B D"]) -> tuple[Array, Array]:
    """Compute the gradient of a table that is used once, at a model's end, before the backward pass goes on.

    Otherwise the compiler may keep what each device has of it, the whole table's size in float32, until all layers are
    through. Both come back as they are; without a mesh nothing happens.
    """
    return linear_map(_both, _at_once, (), (table, hidden)) if sharing() else (table, hidden)


def _both(_: tuple, pair: tuple[Array, Array]) -> tuple[Array, Array]:
    return pair


def _at_once(_: tuple, pulls: tuple[Array, Array]) -> tuple[Array, Array]:
    return jax.lax.optimization_barrier(pulls)


@implicit("tokens")
@reused
def take_rows(table: Float[Array, "*n V D"], tokens: Int[Array, "*B"]) -> Float[Array, "*B D"]:
    """Look up the embeddings of tokens; their gradients are added up in float32.

    Where devices hold some columns each of a table that has more rows than a device has tokens, they look up their
    columns of all tokens and exchange what they found; else each has the table whole for it.

    >>> take_rows(jnp.eye(3, 2), jnp.array([1, 0])).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    columns = exchanged(table.shape, tokens.shape)
    if columns:
        return _exchange(table, tokens, columns)
    return by_device(lambda table, _, tokens: lookup(table, tokens), tokens.shape, table, None, tokens)


def exchanged(table: tuple[int, ...], shape: tuple[int, ...]) -> tuple[str, ...]:
    """Name the axes of the mesh along which devices exchange embeddings; none where they do not.

    Args:
      table, shape: the shapes of the table and of tokens.
    """
    embed, sizes = mesh_axes("embed"), auto_axes()
    if not embed or len(table) > 2:
        return ()
    rows, positions = places(shape, mesh_axes("batch"))
    if not set(embed) <= set(rows) or table[-1] % math.prod(sizes[axis] for axis in embed):
        return ()
    own = math.prod(shape) // math.prod(sizes[axis] for axis in (*rows, *positions))
    return embed if own < table[0] else ()


def _exchange(table: Array, tokens: Array, columns: tuple[str, ...]) -> Array:
    place = PartitionSpec(*places(tokens.shape, mesh_axes("batch"))[: tokens.ndim])

    def run(part: Array, own: Array) -> Array:
        found = lookup(part, jax.lax.all_gather(own, columns))
        return jax.lax.all_to_all(found, columns, 0, found.ndim - 1, tiled=True)[0]

    return device_map(run, given=(PartitionSpec(None, columns), place), made=place, axes=sharing())(table, tokens)


@implicit("hidden")
@reused
def multiply_rows(table: Float[Array, "*n V D"], hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
    """Multiply hidden states with every row: the logits of a language model, in float32 or more.

    >>> multiply_rows(jnp.eye(3, 2), jnp.array([5.0, 7.0])).tolist()
    [5.0, 7.0, 0.0]
    """

    def run(table: Array, _: None, hidden: Array) -> Array:
        # As one matrix: XLA on CPU makes no matrix product of a gradient that sums over several axes.
        flat = float32_product("td,vd->tv", hidden.reshape(-1, hidden.shape[-1]), table)
        return flat.reshape(*hidden.shape[:-1], -1)

    return by_device(run, hidden.shape[:-1], table, None, hidden, stages=True)


def by_device(
    run: Callable, shape: tuple[int, ...], table: Array, whole: Any, *own: Array, stages: bool = False
) -> Any:
    """Call `run(table, whole, *own)` on each device, with its own table and its own tokens.

    Args:
      shape: of tokens, B: rows, then positions if there are any. What cannot be shared out evenly all devices have.
      table: [V, D] or [n, V, D]; `run` gets [V, D].
      whole: a pytree of arrays that all devices have.
      own: arrays [*B, …].
      stages: whether the stages of a pipeline share rows out, too; else each does the same.

    Returns:
      What `run` does: arrays [*B, …], of as many rows and positions as a device has.
    """
    tables, every = spread(table) if table.ndim == 2 else table, sharing()
    if not every:
        return run(tables[0], whole, *own)
    # The stages of a pipeline all have all rows.
    rows = mesh_axes("batch", "layers") if stages else mesh_axes("batch")

    place = PartitionSpec(*places(shape, rows)[: len(shape)])
    given = PartitionSpec(every), PartitionSpec(), *(place,) * len(own)
    on_device = device_map(lambda tables, *rest: run(tables[0], *rest), given=given, made=place, axes=every)
    return on_device(tables, whole, *own)


def lookup(table: Float[Array, "V D"], ids: Int[Array, "*B"]) -> Float[Array, "*B D"]:
    """Look up rows of a small table, wherever it is; their gradients are added up in float32.

    Ids are 0 … V − 1. Any other, a negative one too, gives NaN, here and on every device: never another row.

    >>> lookup(jnp.array([[5.0], [7.0]]), jnp.array([1, 0, 1])).tolist()
    [[7.0], [5.0], [7.0]]
    """
    return _lookup(table, ids)


@jax.custom_jvp
def _lookup(table: Array, ids: Array) -> Array:
    # `take` itself counts negative ids from the end.
    return jnp.take(table, jnp.where(ids < 0, len(table), ids), axis=0, mode="fill")


@_lookup.defjvp
def _lookup_jvp(given: tuple[Array, Array], tangents: tuple[Array, Any]) -> tuple[Array, Array]:
    # Frequent ids have thousands of gradients, too many for bfloat16 to add up: this way they are added in float32.
    (table, ids), tangent = given, tangents[0]
    return lookup(table, ids), lookup(widen(tangent), ids).astype(table.dtype)
