"""Tables of embeddings on many devices: each device uses them for its own tokens, and gradients are summed once.

Axes: B batch (any number of axes), V vocabulary, D model width.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from flax_transformer.ops.platform import ROWS, auto_axes, parts

# Mesh axes that the first two axes of tokens, rows and positions, are split over, and the columns of a table.
_TOKENS, _COLUMNS = (ROWS, ("sequence",)), "fsdp"


def take_rows(table: Float[Array, "V D"], tokens: Int[Array, "*B"]) -> Float[Array, "*B D"]:
    """Look up the embeddings of tokens.

    Under a mesh with `fsdp` each device adds the gradients of its own tokens up, in float32 [V, D]; what it has of the
    table is then summed over devices, in the table's dtype. The compiler by itself sums the whole table on every
    device. There is no forward-mode differentiation on such a mesh, as it is a `jax.custom_vjp` there.

    >>> take_rows(jnp.eye(3, 2), jnp.array([1, 0])).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    return _take_rows(table, tokens) if parts(_COLUMNS) > 1 else jnp.take(table, tokens, axis=0)


@jax.custom_vjp
def _take_rows(table: Array, tokens: Array) -> Array:
    return jnp.take(table, tokens, axis=0)


def _forward(table: Array, tokens: Array) -> tuple[Array, tuple]:
    return _take_rows(table, tokens), (table, tokens)


def _backward(kept: tuple[Array, Array], gradient: Array) -> tuple[Array, None]:
    table, tokens = kept

    def run(tokens: Array, gradient: Array) -> Array:
        total = jnp.zeros(table.shape, jnp.float32).at[tokens].add(gradient.astype(jnp.float32))
        return scatter(total.astype(table.dtype))

    split, (token, _, columns), _, scatter = by_device(tokens, table)
    return split(run, (token, token), columns)(tokens, gradient), None


_take_rows.defvjp(_forward, _backward)


def by_device(tokens: Array, table: Array) -> tuple[Callable, tuple, Callable, Callable]:
    """Say how devices share out tokens, as the mesh in context has it.

    Returns:
        A `shard_map`; the specs of tokens, of what is whole, and of the table's gradient; how numbers are summed over
        devices; and how the table's gradient is, of which each device keeps the columns it has of the table.
    """
    sizes, axes = auto_axes(), []
    for size, places in zip(tokens.shape, _TOKENS, strict=False):
        over = tuple(axis for axis in places if sizes.get(axis, 1) > 1)
        axes.append(over if size % math.prod(sizes[axis] for axis in over) == 0 else ())
    every = tuple(axis for over in axes for axis in over)
    whole = PartitionSpec()
    if not every:
        return lambda run, given, made: run, (whole,) * 3, lambda x: x, lambda x: x
    columns = [axis for axis in every if axis == _COLUMNS and table.shape[1] % sizes[axis] == 0]
    others = tuple(axis for axis in every if axis not in columns)

    def split(run: Callable, given: tuple, made: Any) -> Callable:
        return jax.shard_map(run, in_specs=given, out_specs=made, axis_names=set(every), check_vma=False)

    def scatter(x: Array) -> Array:
        for axis in columns:
            x = jax.lax.psum_scatter(x, axis, scatter_dimension=1, tiled=True)
        return jax.lax.psum(x, others) if others else x

    specs = PartitionSpec(*axes), whole, PartitionSpec(None, *columns)
    return split, specs, lambda x: jax.lax.psum(x, every), scatter
