"""Quantized weights out, as compressed-tensors has them, which `transformers` opens.

Axes: O outputs, I inputs, G groups. https://github.com/vllm-project/compressed-tensors
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from flax_transformer.hub.quantized.model import by_table, layer
from flax_transformer.hub.quantized.weight import pack
from flax_transformer.hub.table import Matrix
from flax_transformer.hub.weights import Entry
from flax_transformer.listing import listed
from flax_transformer.nn.quantized import BITS, Quantized

Parts = dict[str, tuple[int, Callable[[], np.ndarray]]]
"""Of each tensor of a file, its bytes and how to make it."""


def write_quantized(
    entries: list[Entry], kernels: Mapping[str, Quantized], copies: Iterable[str] = ()
) -> tuple[Parts, dict[str, Any], set[str]]:
    """Return the tensors of quantized weights, the `quantization_config` that describes them, and their whole names.

    Args:
      entries: of the model with whole kernels in their place.
      kernels: those of few bits, by path.
      copies: names of tensors that `transformers` makes of others.

    Raises:
      ValueError: kernels of several kinds, or such as the format has no words for; says which.
    """
    parts: Parts = {}
    names: set[str] = set()
    alike: dict[tuple, str] = {}
    for entry in entries:
        ours = [kernels[path] for path in entry.row.ours if path in kernels]
        if not ours:
            continue
        if not isinstance(entry.row.layout, Matrix) or len(ours) < len(entry.row.ours):
            raise ValueError(f"only matrices are written with few bits, all of one, {entry.row.theirs} is none")
        for each in ours:
            kind = each.kind, each.activations, each.input_scale is None, _group(entry, each), each.zero is None
            alike[kind] = entry.row.theirs
        for index, name in zip(np.ndindex(*entry.leads), entry.names, strict=True):
            parts |= _tensors(entry, ours, index, name.removesuffix(".weight"))
            names.add(name)
    if len(alike) > 1:
        raise ValueError(f"quantized kernels of one folder must be of one kind, got {listed(map(str, alike))}")
    ((kind, activations, dynamic, group, symmetric), where) = next(iter(alike.items()))
    if kind == "nf4":
        raise ValueError(f"compressed-tensors has no nf4, which {where} is; it has int4 in groups")
    whole = {name for entry in entries for name in entry.names if name.endswith(".weight")} | set(copies)
    ignored = sorted(name.removesuffix(".weight") for name in whole - names)
    return parts, _config(kind, activations, dynamic, group, ignored, symmetric), names


def _group(entry: Entry, kernel: Quantized) -> int | None:
    """Return how many inputs share a scale; None: all of an output's."""
    axes = slice(len(entry.leads), len(entry.leads) + entry.row.layout.inputs)
    groups = math.prod(kernel.scale.shape[axes])
    return None if groups == 1 else math.prod(kernel.shape[axes]) // groups


def _tensors(entry: Entry, kernels: list[Quantized], index: tuple[int, ...], name: str) -> Parts:
    layout = entry.row.layout
    rows, columns = layout.shape(entry.shapes)[:: 1 if layout.transposed else -1]
    first = kernels[0]
    groups = math.prod(first.scale.shape[len(entry.leads) : len(entry.leads) + layout.inputs])

    def ones() -> list[Quantized]:
        return [layer(each, index) for each in kernels]

    def values() -> np.ndarray:
        return by_table(layout, layout.join([_plain(each.values) for each in ones()]))

    def shared(part: str) -> np.ndarray:
        pieces = [_spread(_plain(getattr(each, part)), each.shape) for each in ones()]
        return by_table(layout, layout.join(pieces))[:, :: columns // groups]

    found: Parts = {
        f"{name}.weight_scale": (4 * rows * groups, lambda: np.ascontiguousarray(shared("scale"), np.float32))
    }
    if is_packed(first.kind, first.activations):
        bits = BITS[first.kind]
        words = 4 * rows * -(-columns * bits // 32)
        found[f"{name}.weight_packed"] = (words, lambda: pack(values().astype(np.int16) + 2 ** (bits - 1), bits))
        found[f"{name}.weight_shape"] = (16, lambda: np.array([rows, columns], np.int64))
    else:
        found[f"{name}.weight"] = (rows * columns, lambda: np.ascontiguousarray(values()))
    if first.zero is not None:

        def zeros() -> np.ndarray:
            zero = shared("zero").astype(np.int16)
            packed = is_packed(first.kind, first.activations)
            half = 2 ** (BITS[first.kind] - 1)
            return np.ascontiguousarray(pack(zero.T + half, BITS[first.kind]).T) if packed else zero.astype(np.int8)

        found[f"{name}.weight_zero_point"] = (rows * groups, zeros)
    if first.input_scale is not None:
        found[f"{name}.input_scale"] = (4, lambda: np.asarray(ones()[0].input_scale, np.float32).reshape(1))
    return found


def is_packed(kind: str, activations: str | None) -> bool:
    """Return whether values lie in words: those of 4 bits, and those of 8 that are multiplied as floats."""
    return kind == "int4" or (kind == "int8" and activations is None)


def _plain(values: np.ndarray) -> np.ndarray:
    """Return values in a type that takes them one byte each."""
    return values.astype(np.int8) if values.dtype == jnp.int4 else values


def _spread(part: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    for axis, size in enumerate(shape):
        part = np.repeat(part, size // part.shape[axis], axis=axis)
    return part


def _config(
    kind: str, activations: str | None, dynamic: bool, group: int | None, ignored: list[str], symmetric: bool
) -> dict[str, Any]:  # fmt: skip
    def scheme(name: str, strategy: str, dynamic: bool, group: int | None = None) -> dict[str, Any]:
        return {
            "num_bits": 4 if name == "int4" else 8, "type": "float" if name.startswith("float") else "int",
            "symmetric": symmetric, "strategy": strategy, "group_size": group, "dynamic": dynamic, "observer": "minmax",
            "observer_kwargs": {}, "actorder": None, "block_structure": None,
        }  # fmt: skip

    weights = scheme(kind, "channel" if group is None else "group", False, group)
    inputs = None if activations is None else scheme(activations, "token" if dynamic else "tensor", dynamic)
    layout = "float-quantized" if kind.startswith("float") else "int-quantized"
    layout = "pack-quantized" if is_packed(kind, activations) else layout
    return {
        "quant_method": "compressed-tensors", "format": layout, "quantization_status": "compressed",
        "global_compression_ratio": None, "kv_cache_scheme": None, "ignore": ignored,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None,
            }
        },
    }  # fmt: skip
