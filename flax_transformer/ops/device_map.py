"""`jax.shard_map` as used here: over some axes of the mesh in context, in eager calls too, and on CPUs too."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

from flax_transformer.ops.platform import platform
from flax_transformer.parallel.axis import auto_axes, mesh_axes


def device_map(run: Callable, *, given: Any, made: Any, axes: Iterable[str]) -> Callable:
    """Make a function that calls `run` on each device with its parts of arrays; along other axes the compiler splits.

    Args:
      given, made: `PartitionSpec`s of arguments, a tuple, and of results. What is not split every device has; then
        results must be the same everywhere, and gradients are summed.
      axes: of the mesh.
    """

    def call(*arrays: Any) -> Any:
        kinds = jax.tree.map(lambda leaf: leaf.dtype, arrays)

        def part(*parts: Any) -> Any:
            return run(
                *jax.tree.map(lambda leaf, kind: leaf if leaf.dtype == kind else leaf.astype(kind), parts, kinds)
            )

        # Kernels inside start loops from constants, which the check of varying axes does not allow.
        mapped = jax.shard_map(part, in_specs=given, out_specs=made, axis_names=set(axes), check_vma=False)
        # Eager calls know no axes that are left to the compiler.
        return jax.jit(mapped)(*jax.tree.map(summable, arrays))

    return call


def summable(leaf: Any) -> Any:
    """Return short floats 32 bits on CPUs, where XLA ends the process if devices inside of a map are to sum them.

    >>> summable(jnp.ones(2, jnp.bfloat16)).dtype == (jnp.float32 if platform() == "cpu" else jnp.bfloat16)
    True
    """
    short = jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype.itemsize < 4
    return leaf.astype(jnp.float32) if short and platform() == "cpu" else leaf


def places(shape: tuple[int, ...], rows: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Name the axes of the mesh that can share out rows evenly, of those given, and positions."""
    every, sizes = sharing(), auto_axes()

    def even(size: int, over: tuple[str, ...]) -> tuple[str, ...]:
        split = ()
        for axis in over:
            if axis in every and size % math.prod(sizes[name] for name in (*split, axis)) == 0:
                split = *split, axis
        return split

    found = [even(size, over) for size, over in zip(shape, (rows, mesh_axes("length")), strict=False)]
    return (*found, *((),) * (2 - len(found)))


def sharing() -> tuple[str, ...]:
    """Name the axes of the mesh in context along which devices may share out tokens; none without one."""
    return mesh_axes("batch", "layers", "length")
