"""How a training run would lie on a mesh: every parameter with its axes and bytes, and the sums of a device.

Nothing is allocated, and the devices need not be there.
"""

import math
from typing import Any

import jax
from jax.sharding import AbstractMesh, NamedSharding

from flax_transformer.nn.quantized import stored_bytes
from flax_transformer.nn.summary import size
from flax_transformer.parallel import path_name, tree_axes
from flax_transformer.text_table import align
from flax_transformer.train.state import TrainState, parameter_count, state_shardings


def sharding_table(state: TrainState, mesh: AbstractMesh) -> str:
    """Lay out a training state: a line for each parameter, `embed→fsdp` where the mesh splits an axis, then the sums.

    A state without one of the optimizer is of a model that is not trained, and has no gradients.

    Args:
      state: abstract.

    Raises:
      ValueError: for a parameter without a rule, or an axis that its mesh axis does not divide.
    """
    places = state_shardings(state, mesh)
    axes = tree_axes(state.model)
    rows = [("parameter", "shape", "axes→mesh", "per device")]
    for (path, leaf), place in zip(
        jax.tree_util.tree_leaves_with_path(state.model), jax.tree.leaves(places.model), strict=True
    ):
        name = path_name(path)
        shape = "×".join(map(str, leaf.shape)) or "scalar"
        rows.append((name, shape, _axes(axes[name], leaf, place), size(_bytes(leaf, place))))
    trained = bool(jax.tree.leaves(state.opt_state))
    sums = [
        ("parameters", state.model, places.model),
        *([("gradients", state.model, places.model)] if trained else []),
        *([("optimizer state", state.opt_state, places.opt_state)] if trained else []),
        *([("average", state.ema, places.ema)] if state.ema is not None else []),
        *([("carried", state.carried, places.carried)] if state.carried is not None else []),
    ]
    totals = [("", "whole", "per device")]
    whole, part = 0, 0
    for name, tree, where in sums:
        leaves, at = jax.tree.leaves(tree), jax.tree.leaves(where)
        sizes = sum(stored_bytes(leaf.size, leaf.dtype) for leaf in leaves), sum(map(_bytes, leaves, at))
        whole, part = whole + sizes[0], part + sizes[1]
        totals.append((name, *map(size, sizes)))
    totals.append(("in all", size(whole), size(part)))
    split = " × ".join(f"{axis} {count}" for axis, count in mesh.shape.items() if count > 1)
    devices = f"{mesh.size} device{'s' if mesh.size > 1 else ''}{f': {split}' if split else ''}"
    head = f"{parameter_count(state.model):,} parameters on {devices}"
    return f"{head}\n\n{align(rows, 'lllr')}\n\n{align(totals, 'lrr')}"


def _axes(axes: tuple[str | None, ...], leaf: Any, place: NamedSharding) -> str:
    """Spell the logical axes, and the mesh axes that split them."""
    if leaf.ndim == 0:
        return ""
    spec = (*place.spec, *(None,) * leaf.ndim)
    parts = []
    for axis, split in zip(axes, spec, strict=False):
        mesh_axes = "" if split is None else "→" + (split if isinstance(split, str) else "+".join(split))
        parts.append(f"{axis or '–'}{mesh_axes}")
    return " ".join(parts)


def _bytes(leaf: Any, place: NamedSharding) -> int:
    """Count what one device keeps of an array."""
    return stored_bytes(math.prod(place.shard_shape(leaf.shape)), leaf.dtype)
