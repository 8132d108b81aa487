"""A stack of blocks as a pipeline: each stage of the mesh axis `pipeline` holds L/p of them, and rows pass through.

Or of what else splits layers, by `axis_rules`.

Axes: B rows, M microbatches of b rows, p stages, T positions, D width, L layers.
Source: GPipe (Huang et al. 2019, https://arxiv.org/abs/1811.06965); its backward pass is the gradient of this one.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from flax_transformer.ops.device_map import device_map
from flax_transformer.ops.row_random import rows_of
from flax_transformer.parallel import constrain
from flax_transformer.parallel.axis import auto_axes, mesh_axes, parts

ROWS_AT_RANK = {
    "lengths": 1, "offset": 1, "segments": 2, "positions": 2, "condition": 2, "memory": 3, "dense": 4, "bias": 4,
}  # fmt: skip
"""Arguments of blocks, and fields of masks, that have a row for each of x when they have this many axes."""


def pipeline_stages() -> int:
    """Count the stages that the mesh in context asks for: 1 without a mesh, and inside of a stage."""
    return parts("layers")


def microbatch_count(rows: int, stages: int, parts: int = 1) -> int:
    """Choose the number of microbatches: the most, up to four a stage, that leave each the same rows on every device.

    Of M + p - 1 ticks each of the p stages idles for p - 1, so four a stage leave at most a fifth to the bubble.

    Args:
      parts: devices that rows are split over (data × fsdp).

    Raises:
      ValueError: when there are fewer than one a stage.

    >>> microbatch_count(64, 4), microbatch_count(24, 4, parts=2)
    (16, 12)
    """
    found = next((m for m in range(4 * stages, stages - 1, -1) if rows % (m * parts) == 0), None)
    if found is None:
        raise ValueError(
            f"a pipeline needs a microbatch a stage, with the same rows on each device: there are {rows} rows, "
            f"{stages} stages, data × fsdp is {parts}; {stages * parts} or a multiple would do"
        )
    return found


def has_rows(name: str | None, leaf: Any, rows: int) -> bool:
    """Return whether an argument of this name is cut into microbatches along with x."""
    last = (name or "").rpartition("_")[2]  # so `global_positions` are positions, too
    return jnp.ndim(leaf) == ROWS_AT_RANK.get(name, ROWS_AT_RANK.get(last, -1)) and leaf.shape[0] == rows


def run_pipeline(
    run: Callable[[Array, Any, list], Array], x: Float[Array, "*B T D"], layers: Any, shared: list, names: list
) -> Float[Array, "*B T D"]:
    """Compute `run(x, layers, shared)` in stages, a microbatch after the other.

    Replicas of a stage (`data`) add up their gradients over the microbatches before they tell each other.

    Args:
      run: applies some of the layers, in order.
      layers: a pytree whose leaves have the leading axis L; each stage gets L/p.
      shared: what every layer is given beside x. Arrays with rows are cut as x is, see `has_rows`.
      names: of what is shared.

    Raises:
      ValueError: when rows or layers cannot be shared out.
    """
    if x.ndim != 3:
        raise ValueError(f"a pipeline cuts rows into microbatches, so x must be [B, T, D], got {x.shape}")
    stages, rows, depth = pipeline_stages(), x.shape[0], jax.tree.leaves(layers)[0].shape[0]
    if depth % stages:
        raise ValueError(f"layers must be a multiple of the pipeline's stages, got L={depth}, pipeline={stages}")
    count = microbatch_count(rows, stages, parts("batch"))
    static = [None if isinstance(leaf, jax.Array | np.ndarray) else leaf for leaf in shared]
    cut = {i: leaf for i, leaf in enumerate(shared) if has_rows(names[i], leaf, rows)}
    whole = {i: leaf for i, leaf in enumerate(shared) if static[i] is None and i not in cut}
    axes, replicas = mesh_axes("layers"), _replicas()
    copies = math.prod(auto_axes()[axis] for axis in replicas)
    each = rows // count // copies

    def stage_of(
        stage: Int[Array, "1"], first: Int[Array, "1"], layers: Any, x: Array, cut: dict, whole: dict
    ) -> Array:
        """Run one stage: at tick t it works on microbatch t - stage, or, idling, again on the first or the last."""
        x, cut = jax.tree.map(lambda leaf: _delay(leaf, stage[0], stages), (x, cut))
        numbers = jnp.clip(jnp.arange(count + stages - 1) - stage[0], 0, count - 1)

        def tick(received: Array, given: tuple) -> tuple[Array, Array]:
            x, own, number = given
            x = jnp.where(stage[0] == 0, x, received)
            own = jax.tree.map(_pin, own)
            held = {**whole, **own}
            with rows_of(number + count * (first + jnp.arange(each)), rows):
                y = run(x, layers, [held.get(i, leaf) for i, leaf in enumerate(static)])
            return jax.lax.ppermute(y, axes, [(i, i + 1) for i in range(stages - 1)]), y

        return jax.lax.scan(tick, x[0], (x, cut, numbers))[1][None, stages - 1 :]

    split, same, by_row = PartitionSpec(axes), PartitionSpec(), PartitionSpec(None, replicas)
    pipelined = device_map(
        stage_of, given=(split, PartitionSpec(replicas), split, by_row, by_row, same),
        made=PartitionSpec(axes, None, replicas), axes=axes + replicas,
    )  # fmt: skip
    x, cut = jax.tree.map(lambda leaf: _split(leaf, count), (x, cut))
    y = pipelined(jnp.arange(stages), each * jnp.arange(copies), layers, x, cut, whole)[-1]
    return constrain(y.swapaxes(0, 1).reshape(rows, *y.shape[2:]), "batch", "length", None)


def _replicas() -> tuple[str, ...]:
    """Name the mesh axes that a stage's layers are copied along, not gathered."""
    gathered = mesh_axes("embed", "experts")
    return tuple(axis for axis in mesh_axes("batch") if axis not in gathered)


def _split(leaf: Array, count: int) -> Array:
    """Cut rows into `count` microbatches; each takes rows from all over, so that split rows stay split in each."""
    return _pin(leaf.reshape(-1, count, *leaf.shape[1:]).swapaxes(0, 1), None)


def _pin(leaf: Array, *lead: None) -> Array:
    """Keep rows split over devices, and positions of hidden states."""
    return constrain(leaf, *lead, "batch", *(("length", None) if leaf.ndim - len(lead) == 3 else ()))


def _delay(leaf: Array, stage: Array, stages: int) -> Array:
    """Lay microbatches out by tick, as `stage` sees them; where there is none, the nearest stands in."""
    ends = [jnp.broadcast_to(part, (stages - 1, *leaf.shape[1:])) for part in (leaf[:1], leaf[-1:])]
    padded = jnp.concatenate([ends[0], leaf, ends[1]])
    return jax.lax.dynamic_slice_in_dim(padded, stages - 1 - stage, leaf.shape[0] + stages - 1)
