"""What a way of splitting a model must send at least, by mesh axis: the yardstick for what a compiled step sends.

Bytes count as in `parallel.collectives`, the larger side, of one device and step. Data parallelism sums the gradients
that a device keeps (all-reduce). Fully sharded, a parameter is gathered, and its gradient is summed and split once
(Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054). A kernel is gathered for the forward pass and usually again
for the backward pass; a compiler that keeps it, as it may of a small model, does without. A table of embeddings is
gathered once, as a lookup's gradient needs none and the loss takes its own while it has the table; where tokens are
looked up in it alone, what was found may be sent instead, and its gradient back. Of learned positions the batch's alone
have a gradient, frozen parameters and those that no loss depends on have none. Tensor parallelism sums activations
behind each attention and each feed-forward layer, and their gradients before it (Shoeybi et al. 2019,
https://arxiv.org/abs/1909.08053). Groups of experts sum what they have in common, as data parallelism does; what tokens
send to experts and back depends on where they go, and is not counted. Of other axes nothing is said.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from flax_transformer.nn.config import configs_in
from flax_transformer.parallel import path_name, row_parts

LENGTHS = {"encoder": "source", "decoder": "target"}
"""What the positions of a side are called in a batch's shape; `length` in models of one side."""


POSITIONS = re.compile(r"(^|\.)position\.embedding$")
"""Paths of tables of learned positions."""
TOKENS = re.compile(r"(^|\.)(?<!head\.)token\.embedding$")
"""Paths of tables that tokens are looked up in."""


def minimum_bytes(
    model: Any, places: Any, mesh: Mesh | AbstractMesh, shape: Mapping[str, int], dtype: str, *,
    gathers: int = 1, learns: Sequence[bool] | None = None,
) -> dict[str, int]:  # fmt: skip
    """Count the bytes each axis must carry.

    Args:
      model: abstract parameters.
      places: their shardings.
      shape: the sizes of a batch: rows, and positions by the names in `LENGTHS`; where it has none, as of a model
        that is not known here, nothing is said of tensor parallelism.
      dtype: what is computed in: of activations, and of parameters and gradients on their way.
      gathers: of each kernel; with 1 it is a bound, 2 is usual.
      learns: of each parameter, whether it does; all by default.
    """
    wide, size = jnp.dtype(dtype).itemsize, mesh.shape
    rows = shape["rows"] // row_parts(size)
    positions = shape.get("length") or sum(shape.get(length, 0) for length in LENGTHS.values())
    tied = any(getattr(config, "tied_output", False) for config in configs_in(getattr(model, "cfg", None)))
    total, silent = Counter(), set()
    paths = jax.tree_util.tree_leaves_with_path(model)
    leaves = zip(paths, jax.tree.leaves(places), learns or [True] * len(paths), strict=True)
    for (path, leaf), place, learnt in leaves:
        name, held = path_name(path), math.prod(place.shard_shape(leaf.shape))
        sides = (length for part, length in LENGTHS.items() if name.startswith(part) and length in shape)
        side, each = next(sides, "length"), min(wide, leaf.dtype.itemsize)
        reached = min(1.0, shape.get(side, math.inf) / leaf.shape[0]) if POSITIONS.search(name) else 1.0
        apart = [axis for axis in ("data", "expert") if size[axis] > 1 and not splits(place, axis)]
        if apart and learnt:
            total[apart[0]] += int(held * reached) * each
        if size["fsdp"] > 1 and splits(place, "fsdp"):
            times = learnt + (1 if name.endswith(".embedding") else gathers)
            sent = int(held * size["fsdp"] * times * reached) * each
            if TOKENS.search(name) and not tied:
                sent = min(sent, (1 + learnt) * rows * positions * leaf.shape[-1] * wide)
            total["fsdp"] += sent
        if size["tensor"] > 1 and name.endswith((".out.kernel", ".down.kernel")) and splits(place, "tensor"):
            if side not in shape:
                silent.add("tensor")
                continue
            depth = leaf.shape[0] // size["pipeline"]
            total["tensor"] += 2 * depth * rows * shape[side] * leaf.shape[-1] * wide
    return {axis: count for axis, count in total.items() if axis not in silent}


def splits(place: Any, axis: str) -> bool:
    """Whether a sharding splits any dimension over a mesh axis."""
    return any(axis in (part if isinstance(part, tuple) else (part,)) for part in place.spec)
