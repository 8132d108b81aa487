"""Tensors to parameters and back, leaf by leaf."""

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from flax_transformer.hub.file import DTYPES, Tensor
from flax_transformer.hub.table import LAYER, Shape, Table, TensorRow
from flax_transformer.listing import listed
from flax_transformer.parallel import path_name, tree_shardings

PIECE = 256 * 2**20
"""Bytes of a stack that are gathered on the host at a time; larger stacks go to the device layer by layer."""

COPIES = min(os.cpu_count() or 1, 4)
"""Stacks that are gathered at a time where they stay on the host."""


@dataclass(frozen=True)
class Entry:
    """A row of a table with what it means for one model."""

    row: TensorRow
    shapes: tuple[Shape, ...]
    """Of our parameters, of one layer, of one of its experts."""
    leads: tuple[int, ...]
    """How many layers, and experts of each, where these are axes of ours and a tensor each of theirs."""
    below: int = 0
    """How many layers lie below, in another stack."""

    @property
    def depth(self) -> int | None:
        """How many layers, or None where there is no layer axis."""
        return self.leads[0] if self.leads else None

    @property
    def names(self) -> list[str]:
        """Their tensors, by layer."""
        return _numbered(self.row.theirs, self.indices, self.below)

    @property
    def indices(self) -> list[tuple[int, ...]]:
        """Where in our parameters each of them is."""
        every = list(np.ndindex(*self.leads))
        return every if self.row.absent is None else [index for index in every if index[0] > 0]

    @property
    def counters(self) -> list[str]:
        """Whole numbers of theirs that count batches, by layer."""
        return _numbered(self.row.counter, self.indices, self.below) if self.row.counter else []

    @property
    def shape(self) -> Shape:
        """Of each of their tensors."""
        return self.row.layout.shape(self.shapes)


def _numbered(name: str, indices: list[tuple[int, ...]], below: int) -> list[str]:
    """Name the tensors of a row, one for each layer, of which others lie below, and each of its experts."""
    pieces = LAYER.split(name)
    texts, firsts = pieces[2::2], [int(first or 0) for first in pieces[1::2]]
    firsts[:1] = [first + below for first in firsts[:1]]
    names = []
    for index in indices:
        numbered = (f"{first + i}{text}" for first, i, text in zip(firsts, index, texts, strict=True))
        names.append(pieces[0] + "".join(numbered))
    return names


def resolve(table: Table, model: Any) -> list[Entry]:
    """Match a table with a (possibly abstract) model; rows for parameters that it has not are left out.

    Raises:
      ValueError: when a parameter has no row or several.
    """
    leaves = dict(_leaves(model))
    entries, seen = [], set()
    for row in table:
        if not row.holds(leaves.keys()):
            continue
        shapes = tuple(leaves[path].shape for path in row.ours)
        axes = len(LAYER.findall(row.theirs))
        below = leaves[row.above].shape[0] if row.above in leaves else 0
        entries.append(Entry(row, tuple(shape[axes:] for shape in shapes), shapes[0][:axes], below))
        twice = seen.intersection(row.ours)
        if twice:
            raise ValueError(f"a parameter must have one row in the weight table, {sorted(twice)[0]} has several")
        seen.update(row.ours)
    if rest := leaves.keys() - seen:
        raise ValueError(f"every parameter must have a row in the weight table, {listed(sorted(rest))} have none")
    return entries


def _leaves(model: Any) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(model):
        yield path_name(path), leaf


def fitted(entries: list[Entry], tensors: Mapping[str, Tensor], before: Any, after: Any) -> dict[str, Tensor]:
    """Make tensors of another shape fit, of those rows that say how.

    Args:
      before: the fields of config.json that the tensors were made with.
      after: those that the model is made with.
    """

    def read(entry: Entry, tensor: Tensor) -> np.ndarray:
        return np.asarray(entry.row.fit(tensor.read(), before, after)).astype(jnp.dtype(tensor.dtype))

    found = dict(tensors)
    for entry in entries:
        for name in entry.names if entry.row.fit is not None else ():
            if name in tensors and tensors[name].shape != entry.shape:
                found[name] = replace(tensors[name], shape=entry.shape, read=partial(read, entry, tensors[name]))
    return found


def compare(entries: list[Entry], tensors: Mapping[str, Tensor], fresh: re.Pattern[str]) -> list[str]:
    """List everything in which a checkpoint is not what the table says.

    Args:
      fresh: pattern of tensors that may be missing or of another shape, with those of all other layers, their parameter
        to be initialised.
    """
    expected = {name: entry.shape for entry in entries for name in entry.names}
    whole = (entry.names for entry in entries if not any(_fits(entry, name, tensors) for name in entry.names))
    started = {name for names in whole for name in names if fresh.search(name)}
    found = []
    for name, shape in expected.items():
        if name in started:
            continue
        if name not in tensors:
            found.append(f"missing: {name} {list(shape)}")
        elif tensors[name].shape != shape:
            found.append(f"misshapen: {name} is {list(tensors[name].shape)}, must be {list(shape)}")
        elif tensors[name].dtype not in DTYPES.values():
            found.append(f"not a float: {name} is {tensors[name].dtype}")
    return found + [f"extra: {name} {list(tensors[name].shape)}" for name in tensors if name not in expected]


def _fits(entry: Entry, name: str, tensors: Mapping[str, Tensor]) -> bool:
    return name in tensors and tensors[name].shape == entry.shape


def same_tensor(one: Tensor, other: Tensor) -> bool:
    """Compare two tensors of a checkpoint."""
    same_type = (one.shape, one.dtype) == (other.shape, other.dtype)
    return same_type and np.array_equal(one.read().view(np.uint8), other.read().view(np.uint8))


def load_model(
    model: Any, entries: list[Entry], tensors: Mapping[str, Tensor], mesh: Mesh | None, fresh: Callable[[], Any]
) -> Any:
    """Fill an abstract model from tensors, every parameter straight onto the devices that keep it.

    Args:
      fresh: makes an initialised model, for parameters that no tensor has in their shape.
    """
    here = SingleDeviceSharding(jax.devices()[0])
    shardings = jax.tree.map(lambda _: here, model) if mesh is None else tree_shardings(model, mesh)
    abstract, shardings = dict(_leaves(model)), dict(_leaves(shardings))
    filled: dict[str, jax.Array] = {}

    def gather(entry: Entry) -> list[jax.Array]:
        def read(name):
            return entry.row.layout.split(tensors[name].read(), entry.shapes)

        return _gather(read, entry, [(abstract[path], shardings[path]) for path in entry.row.ours])

    present = [entry for entry in entries if all(_fits(entry, name, tensors) for name in entry.names[:1])]
    # Copies of memory to memory run side by side, the largest first, so that all end at about the same time; what goes
    # elsewhere goes one at a time, to need little on the way.
    present.sort(key=lambda entry: -sum(abstract[path].size for path in entry.row.ours))
    with ThreadPoolExecutor(COPIES if all(map(_is_host, shardings.values())) else 1) as pool:
        for entry, arrays in zip(present, pool.map(gather, present), strict=True):
            filled.update(zip(entry.row.ours, arrays, strict=True))
    if missing := [path for path in abstract if path not in filled]:

        def make():
            return {path: leaf for path, leaf in _leaves(fresh()) if path in missing}

        filled |= jax.jit(make, out_shardings={path: shardings[path] for path in missing})()
    return jax.tree.unflatten(jax.tree.structure(model), [filled[path] for path in abstract])


def _gather(read: Callable[[str], list[np.ndarray]], entry: Entry, wanted: list[tuple[Any, Any]]) -> list[jax.Array]:
    small = sum(leaf.size * leaf.dtype.itemsize for leaf, _ in wanted) <= PIECE
    each, absent = [*zip(entry.indices, entry.names, strict=True)], entry.row.absent or 0
    if not entry.leads or small or all(_is_host(place) for _, place in wanted):
        hosts = [_aligned(leaf.shape, leaf.dtype) for leaf, _ in wanted]
        for host in hosts if len(each) < math.prod(entry.leads) else ():
            host[:1] = absent
        for index, name in each:
            for host, part in zip(hosts, read(name), strict=True):
                host[index] = part
        return [_put(host, place) for host, (_, place) in zip(hosts, wanted, strict=True)]
    stacks = [jax.jit(partial(jnp.full, x.shape, absent, x.dtype), out_shardings=place)() for x, place in wanted]
    for index, name in each:
        for j, (part, (leaf, place)) in enumerate(zip(read(name), wanted, strict=True)):
            one = _put(part.astype(leaf.dtype), _of_layer(place, len(index)))
            stacks[j] = _insert(stacks[j], one, [jnp.int32(i) for i in index])
            stacks[j].block_until_ready()  # one layer on its way at a time
    return stacks


def _is_host(place: Any) -> bool:
    """Return whether the parameter will stay where it is gathered."""
    return len(place.device_set) == 1 and next(iter(place.device_set)).platform == "cpu"


def _aligned(shape: Shape, dtype: Any) -> np.ndarray:
    """Make an array that JAX takes as it is on a CPU, where it demands 64 bytes of alignment, and copies otherwise."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


@partial(jax.jit, donate_argnums=0)
def _insert(stack: jax.Array, part: jax.Array, index: list[jax.Array]) -> jax.Array:
    part = part.reshape(*(1,) * len(index), *part.shape)
    return jax.lax.dynamic_update_slice(stack, part, [*index, *(0,) * (stack.ndim - len(index))])


def _of_layer(place: Any, axes: int) -> Any:
    return NamedSharding(place.mesh, PartitionSpec(*place.spec[axes:])) if isinstance(place, NamedSharding) else place


def _put(host: np.ndarray, place: Any) -> jax.Array:
    """Bring an array that nobody else has onto devices."""
    if place.is_fully_addressable:
        return jax.device_put(host, place)
    return jax.make_array_from_callback(host.shape, place, lambda index: host[index])


def tensors_of(model: Any, entries: list[Entry]) -> dict[str, tuple[int, Callable[[], np.ndarray]]]:
    """Give, for each tensor of a checkpoint, its bytes and how to make it from a model."""
    leaves = dict(_leaves(model))
    found = {}
    for entry in entries:
        parts = [leaves[path] for path in entry.row.ours]
        size = sum(part.size // math.prod(entry.leads) * part.dtype.itemsize for part in parts)
        for index, name in zip(entry.indices, entry.names, strict=True):
            found[name] = (size, partial(_join, entry, parts, index))
        found |= {name: (8, partial(np.zeros, (), np.int64)) for name in entry.counters}
    return found


def _join(entry: Entry, parts: list[jax.Array], index: tuple[int, ...]) -> np.ndarray:
    """Bring one layer's parameters to the host as one tensor of theirs."""
    return entry.row.layout.join([np.asarray(part[index] if index else part) for part in parts])


def renames(names: Mapping[str, str]) -> dict[str, str]:
    """Return patterns of a `renamer` that put one beginning of names for another, module by module.

    >>> renamer(renames({"head.gn1": "head.norm1"}))("head.gn1.weight")
    'head.norm1.weight'
    """
    return {rf"^{re.escape(old)}\.": f"{new}." for old, new in names.items()}


def renamer(patterns: Mapping[str, str]) -> Callable[[str], str]:
    """Make a function that rewrites names by patterns, in order."""
    compiled = [(re.compile(pattern), to) for pattern, to in patterns.items()]

    def rename(name: str) -> str:
        for pattern, to in compiled:
            name = pattern.sub(to, name)
        return name

    return rename
