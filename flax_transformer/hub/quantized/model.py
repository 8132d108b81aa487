"""Quantized weights as kernels of few bits in a model, and back, by the tables that whole weights have.

A table says how a matrix of theirs is cut, transposed and stacked. It is applied to the values and to the scales,
repeated for all inputs that share one; what was repeated is then taken once. Axes: O outputs, I inputs, G groups.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from flax_transformer.compress.kernel import kernels_of, map_kernels
from flax_transformer.hub.file import Tensor, common_dtype
from flax_transformer.hub.quantized.layout import is_matrix, is_turned, once, split, turn
from flax_transformer.hub.quantized.weight import StoredWeight, spread
from flax_transformer.hub.weights import Entry, load_model
from flax_transformer.nn.linear import StructuredKernel
from flax_transformer.nn.quantized import Quantized, is_quantized
from flax_transformer.parallel import path_name, tree_shardings


@dataclass(frozen=True)
class QuantizedTensor(Tensor):
    """A tensor that reads as a whole matrix, and what it is in the file."""

    weight: StoredWeight | None = None


def whole(found: Mapping[str, StoredWeight], dtype: str) -> dict[str, Tensor]:
    """Return tensors that read as whole matrices, by name."""

    def read(weight: StoredWeight) -> Callable[[], np.ndarray]:
        return lambda: weight.dequantized().astype(jnp.dtype(dtype))

    return {name: QuantizedTensor(each.shape, dtype, read(each), each) for name, each in found.items()}


def turned(entries: list[Entry], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Turn whole matrices of rows whose table has inputs first, as GPT-2's: quantized ones have outputs first."""
    found = dict(tensors)
    for entry in entries:
        for name in entry.names if is_turned(entry) else ():
            if isinstance(tensor := tensors.get(name), QuantizedTensor):
                found[name] = replace(tensor, shape=tensor.shape[::-1], read=_turned(tensor.read))
    return found


def _turned(read: Callable[[], np.ndarray]) -> Callable[[], np.ndarray]:
    return lambda: read().T


def load_quantized(
    model: Any, entries: list[Entry], tensors: Mapping[str, Tensor], mesh: Mesh | None, fresh: Callable[[], Any]
) -> Any:
    """Fill an abstract model as `load_model` does; kernels of quantized weights keep their few bits.

    A weight whose groups are no consecutive inputs of an output becomes a whole kernel.
    """
    kept = {path: entry for entry in entries if _is_kept(entry, tensors) for path in entry.row.ours}
    if not kept:
        return load_model(model, entries, tensors, mesh, fresh)
    held = {path: _held(_first(entry, tensors)) for path, entry in kept.items()}
    values = {name: _values(entry, tensors[name]) for entry in kept.values() for name in entry.names}

    def stored(path: tuple, leaf: Any) -> Any:
        name = path_name(path)
        return jax.ShapeDtypeStruct(leaf.shape, held[name]) if name in held else leaf

    filled = load_model(jax.tree_util.tree_map_with_path(stored, model), entries, {**tensors, **values}, mesh, fresh)
    parts = {path: part for entry in set(kept.values()) for path, part in _scales(entry, tensors).items()}

    def make(path: str, kernel: Any) -> Any:
        if path not in kept:
            return kernel
        weight = _first(kept[path], tensors)
        kernel = kernel if weight.kind in held.values() else jax.jit(lambda x: x.astype(weight.kind))(kernel)
        named = {name: None if part is None else jnp.asarray(part) for name, part in parts[path].items()}
        return Quantized(kernel, **named, kind=weight.kind, activations=weight.activations)

    model = map_kernels(make, filled)
    return model if mesh is None else jax.device_put(model, tree_shardings(model, mesh))


def _first(entry: Entry, tensors: Mapping[str, Tensor]) -> StoredWeight:
    return tensors[entry.names[0]].weight


def _is_kept(entry: Entry, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a row's weights are all quantized alike, and can stay so."""
    found = [getattr(tensors.get(name), "weight", None) for name in entry.names]
    if not found or not is_matrix(entry) or None in found:
        return False
    names = "kind", "scale_width", "activations"
    alike = {(*(getattr(w, name) for name in names), w.zero is None, w.input_scale is None) for w in found}
    if len(alike) > 1 or not found[0].kept:
        return False
    try:
        for shape in entry.shapes:
            once(entry, np.broadcast_to(np.int8(0), shape), _group(found[0]))
    except ValueError:
        return False
    return True


def _group(weight: StoredWeight) -> int | None:
    return None if weight.scale_width == 1 else weight.shape[1] // weight.scale_width


def _held(weight: StoredWeight) -> str:
    """Return the type that values come in."""
    return "float8_e4m3fn" if weight.kind.startswith("float") else "int8"


def _values(entry: Entry, tensor: QuantizedTensor) -> Tensor:
    return Tensor(tensor.shape, _held(tensor.weight), lambda: turn(entry, tensor.weight.values()))


def _scales(entry: Entry, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, np.ndarray | None]]:
    """Return what there is beside the values of each parameter of a row, stacked by layers."""
    weights = [tensors[name].weight for name in entry.names]
    parts: dict[str, list] = {"scale": [], "zero": [], "input_scale": []}
    for weight in weights:
        group = _group(weight)

        def cut(found: np.ndarray, weight: StoredWeight = weight, group: int | None = group) -> list[np.ndarray]:
            return [once(entry, piece, group) for piece in split(entry, spread(found, weight.shape))]

        parts["scale"].append(cut(weight.scale()))
        parts["zero"].append(None if weight.zero is None else cut(weight.zero()))
        one = None if weight.input_scale is None else np.float32(weight.input_scale().reshape(-1)[0])
        parts["input_scale"].append(None if one is None else [one] * len(entry.shapes))
    found = {}
    for number, path in enumerate(entry.row.ours):
        found[path] = {
            name: None if each[0] is None else np.stack([one[number] for one in each]).reshape(
                *entry.leads, *np.shape(each[0][number])
            )
            for name, each in parts.items()
        }  # fmt: skip
        if weights[0].zero is not None:
            found[path]["zero"] = found[path]["zero"].astype(weights[0].kind)
    return found


def plain(model: Any) -> Any:
    """Return a model with abstract whole kernels in the place of quantized ones."""

    def change(path: str, kernel: Any) -> Any:
        whole = not isinstance(kernel, StructuredKernel)
        return kernel if whole else jax.ShapeDtypeStruct(kernel.shape, kernel.dtype)

    return map_kernels(change, model)


def quantized_kernels(model: Any) -> dict[str, Quantized]:
    """Return the kernels of few bits that a model has, by path."""
    return {path: kernel for path, kernel in kernels_of(model).items() if isinstance(kernel, Quantized)}


def whole_dtype(model: Any) -> str:
    """Find the floats that most parameters are in, of those that have no few bits; float32 where there are none."""
    leaves = jax.tree.leaves(model, is_leaf=is_quantized)
    return common_dtype(leaf for leaf in leaves if not is_quantized(leaf))


def dequantize_model(model: Any, dtype: Any = None) -> Any:
    """Return a model with whole kernels, as any other."""

    def change(path: str, kernel: Any) -> Any:
        return kernel.dequantize().astype(dtype or kernel.dtype) if isinstance(kernel, Quantized) else kernel

    return map_kernels(change, model)


def layer(kernel: Quantized, index: tuple[int, ...]) -> Quantized:
    """Return one layer's of a stack, on the host."""
    names = ("values", "scale", "zero", "input_scale")
    parts = {name: getattr(kernel, name) for name in names if getattr(kernel, name) is not None}
    return replace(kernel, **{name: np.asarray(part[index] if index else part) for name, part in parts.items()})
