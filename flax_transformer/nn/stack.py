"""Depth as an axis: L blocks are one block whose leaves have a leading L."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, PRNGKeyArray

REMAT: dict[str, Callable | None] = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}
"""What a block keeps for its backward pass: everything, nothing but its input, or its matrix products."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PerLayer:
    """Marks an argument of `apply_stack` that has a leading layer axis of its own, one slice for each block."""

    value: Any


def init_stack(make: Callable[[nnx.Rngs], nnx.Module], depth: int, *, key: PRNGKeyArray) -> Any:
    """Make `depth` blocks as one, each from its own key.

    Args:
      make: builds one block from its `nnx.Rngs`.
    """
    if depth < 1:
        raise ValueError(f"a stack needs at least one block, got depth {depth}")
    return jax.vmap(lambda k: make(nnx.Rngs(k)))(jax.random.split(key, depth))


def stack_depth(blocks: Any) -> int:
    """Count the blocks of a stack."""
    return len(blocks) if isinstance(blocks, nnx.List) else jax.tree.leaves(blocks)[0].shape[0]


def layer(blocks: Any, index: int) -> Any:
    """Take one block out of a stack."""
    return jax.tree.map(lambda leaf: leaf[index], blocks)


def unstack(blocks: Any) -> nnx.List:
    """Take a stack apart, for loops that use it many times on a CPU.

    There every use of a stack copies each block's weights out of it, which in decoding costs as much as the
    products with them. Training and accelerators have no use for it.
    """
    return nnx.List([layer(blocks, i) for i in range(stack_depth(blocks))])


def map_stack(function: Callable[[Any], Any], blocks: Any) -> Any:
    """Apply a function to every block; results are stacked, or a tuple where the blocks are taken apart."""
    if isinstance(blocks, nnx.List):
        return tuple(function(block) for block in blocks)
    return jax.vmap(function)(blocks)


def apply_stack(
    blocks: Any,
    x: Array,
    *args: Any,
    cache: Any = None,
    key: PRNGKeyArray | None = None,
    unroll: int | bool = 1,
    remat: str = "none",
    **kwargs: Any,
) -> Any:
    """Run x through the blocks in order, as one `lax.scan` over the layer axis.

    Blocks that `unstack` took apart run one after another; what has a layer axis is then a tuple.

    Args:
      args, kwargs: passed to every block; what is wrapped in `PerLayer` is sliced, one entry for each.
      cache: a cache with a leading layer axis; the call then returns (x, cache).
      key: split, one for each block.
      unroll: blocks per loop iteration; True for no loop. The result is the same, compile time and speed differ.
      remat: a name in `REMAT`: what the backward pass keeps rather than computes again.

    Raises:
      ValueError: for an unknown remat policy.
    """
    if remat not in REMAT:
        raise ValueError(f"remat must be one of {', '.join(REMAT)}, got {remat!r}")
    keys = None if key is None else jax.random.split(key, stack_depth(blocks))
    is_per_layer = lambda leaf: isinstance(leaf, PerLayer)  # noqa: E731
    leaves, treedef = jax.tree.flatten((args, kwargs), is_leaf=is_per_layer)
    sliced = [leaf.value for leaf in leaves if is_per_layer(leaf)]

    def step(x: Array, layers: tuple) -> tuple[Array, Any]:
        block, k, slices, state = layers
        slices = iter(slices)
        filled = [next(slices) if is_per_layer(leaf) else leaf for leaf in leaves]
        block_args, block_kwargs = treedef.unflatten(filled)
        if state is None:
            return block(x, *block_args, key=k, **block_kwargs), None
        return block(x, *block_args, cache=state, key=k, **block_kwargs)

    if remat != "none":
        step = jax.checkpoint(step, policy=REMAT[remat], prevent_cse=unroll is True)
    if isinstance(blocks, nnx.List):
        after = []
        for i, block in enumerate(blocks):
            k = None if keys is None else keys[i]
            x, state = step(x, (block, k, [s[i] for s in sliced], None if cache is None else cache[i]))
            after.append(state)
        return x if cache is None else (x, tuple(after))
    x, after = jax.lax.scan(step, x, (blocks, keys, sliced, cache), unroll=unroll)
    return x if cache is None else (x, after)
