"""A forward pass, or a step of decoding, as `plan` compiles it: what it is given, where that lies, and how large it is.

A step of decoding reads one token of every row, with a cache that has room for all of a row; one token of each comes
out. A model that writes all tokens at once has no steps: its decoding is one call.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from flax_transformer.bench.flops import alone, count_flops
from flax_transformer.bench.workload import Facts, Workload
from flax_transformer.frozen import frozen
from flax_transformer.nn import Memory
from flax_transformer.nn.embedding import Embedding, OutputTable
from flax_transformer.nn.quantized import stored_bytes
from flax_transformer.parallel import batch_sharding, tree_shardings
from flax_transformer.parallel.axis import several
from flax_transformer.parallel.sharding import to_spec
from flax_transformer.train.state import parameter_count


@frozen
class Inference:
    """A program for a mesh, and what is known of it; bytes are of one device."""

    facts: Facts
    function: Callable
    """What `jax.jit` gave."""
    arguments: tuple
    """`jax.ShapeDtypeStruct`s with shardings; the model is the first."""
    weights: int
    """Bytes of the model."""
    looked_up: int
    """Bytes of it that are tables of which a call reads few rows."""
    cache: int = 0
    """Bytes of keys and values, and of what else a step is given of earlier ones."""


def inference(workload: Workload, what: str, mesh: Mesh) -> Inference:
    """Make the program `forward` or `decode` of a workload for a mesh.

    Raises:
      ValueError: a program that the workload has not, or rows that the mesh cannot share out.
    """
    if what not in workload.programs:
        known = ", ".join(workload.programs)
        raise ValueError(f"what is planned of {workload.name} must be one of {known}, got {what!r}")
    workload.check_rows(mesh.shape)
    model = jax.eval_shape(workload.init, jax.random.key(0))
    placed = _with(model, tree_shardings(model, mesh))
    tables = sum(device_bytes(table) for table in looked_up(placed))
    shared = {"weights": device_bytes(placed), "looked_up": tables}
    if what == "decode" and workload.start is not None:
        return _step(workload, model, placed, mesh, shared)
    run = workload.decode if what == "decode" else workload.forward
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), workload.batch)
    facts = _facts(workload, what, model, run, (model, batch))
    given = placed, _with(batch, jax.tree.map(lambda _: batch_sharding(mesh), batch))
    return Inference(facts=facts, function=jax.jit(run), arguments=given, **shared)


def _step(workload: Workload, model: Any, placed: Any, mesh: Mesh, shared: dict[str, int]) -> Inference:
    run, length = type(model).step, workload.batch["labels"].shape[1]
    with alone():
        cache, token = jax.eval_shape(partial(workload.start, length=length), model, workload.batch)
    facts = replace(
        _facts(workload, "decode", model, run, (model, cache, token)),
        shape={"rows": workload.rows, "positions": length}, items=workload.rows, unit="tokens",
    )  # fmt: skip
    places = cache_shardings(cache, mesh)
    given = placed, _with(cache, places), _with(token, batch_sharding(mesh))
    step = jax.jit(run, donate_argnums=1, out_shardings=(None, places))
    return Inference(facts=facts, function=step, arguments=given, cache=device_bytes(given[1]), **shared)


def _facts(workload: Workload, what: str, model: Any, run: Callable, given: tuple) -> Facts:
    with alone():
        flops = count_flops(run, *given)
    return Facts(
        name=workload.name, parameters=parameter_count(model), shape=workload.shape, items=workload.items,
        unit=workload.unit, flops={what: flops}, dtype=workload.dtype or flops.dtype,
    )  # fmt: skip


def cache_shardings(cache: Any, mesh: Mesh | AbstractMesh) -> Any:
    """Return where a cache lies: keys and values by rows and heads, as attention splits them; all else is whole.

    So is an axis that cannot be cut evenly, as that of the one head of latents.
    """

    def split(leaf: Any, layers: int) -> NamedSharding:
        axes = (None,) * layers + ("batch", "kv_heads", None, None)[-(leaf.ndim - layers) :]
        sized = zip(leaf.shape, to_spec(axes, mesh.shape), strict=False)
        cut = [size % math.prod(mesh.shape[name] for name in several(place)) == 0 for size, place in sized]
        spec = to_spec(tuple(axis if fits else None for axis, fits in zip(axes, cut, strict=False)), mesh.shape)
        return NamedSharding(mesh, spec if any(spec) else PartitionSpec())

    def place(node: Any) -> Any:
        if not isinstance(node, Memory):
            return NamedSharding(mesh, PartitionSpec())
        layers = max(node.value.ndim - 4, 0) if not hasattr(node, "index") else node.index.ndim
        whole = jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec()), node)
        parts = {name: jax.tree.map(lambda leaf: split(leaf, layers), getattr(node, name)) for name in ("key", "value")}
        return replace(whole, **parts)

    return jax.tree.map(place, cache, is_leaf=lambda node: isinstance(node, Memory))


def looked_up(model: Any) -> list[Any]:
    """Return the tables of a model in which rows are looked up, and with which nothing is multiplied."""
    parts = jax.tree.leaves(model, is_leaf=lambda part: isinstance(part, Embedding))
    parts = [part for part in parts if isinstance(part, Embedding)]
    own = any(isinstance(part, OutputTable) for part in parts)
    inputs = [part for part in parts if not isinstance(part, OutputTable)]
    names = ("token", "position", "type") if own else ("position", "type")
    return [getattr(part, name) for part in inputs for name in names if hasattr(part, name)]


def device_bytes(tree: Any) -> int:
    """Count the bytes of arrays, or of shapes with shardings, on one device."""
    leaves = jax.tree.leaves(tree)
    return sum(stored_bytes(math.prod(leaf.sharding.shard_shape(leaf.shape)), leaf.dtype) for leaf in leaves)


def _with(tree: Any, shardings: Any) -> Any:
    if isinstance(shardings, NamedSharding):
        return jax.ShapeDtypeStruct(tree.shape, tree.dtype, sharding=shardings)
    return jax.tree.map(_with, tree, shardings)
