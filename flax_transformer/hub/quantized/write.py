"""Quantized weights out, as compressed-tensors has them, which `transformers` opens.

Axes: O outputs, I inputs, G groups. https://github.com/vllm-project/compressed-tensors
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from flax_transformer.hub.quantized.layout import group_count, is_matrix, join, matrix_size
from flax_transformer.hub.quantized.model import layer
from flax_transformer.hub.quantized.weight import pack, spread
from flax_transformer.hub.table import Matrix
from flax_transformer.hub.weights import Entry
from flax_transformer.nn.quantized import BITS, Quantized

Parts = dict[str, tuple[int, Callable[[], np.ndarray]]]
"""Of each tensor of a file, its bytes and how to make it."""


@dataclass(frozen=True)
class Scheme:
    """What one group of layers has: a `config_groups` of the file."""

    kind: str
    activations: str | None
    dynamic: bool
    symmetric: bool
    group: int | None
    table: bool = False

    @property
    def packed(self) -> bool:
        """Whether values lie in words: those of 4 bits, and of 8 in kernels that are multiplied as floats.

        Of a table `transformers` asks for the `weight`, which words are not.
        """
        return self.kind == "int4" or (self.kind == "int8" and self.activations is None and not self.table)


def write_quantized(
    entries: list[Entry], kernels: Mapping[str, Quantized], copies: Iterable[str] = ()
) -> tuple[Parts, dict[str, Any], set[str]]:
    """Return the tensors of quantized weights, the `quantization_config` that describes them, and their whole names.

    Args:
      entries: of the model with whole kernels in their place.
      kernels: those of few bits, by path.
      copies: names of tensors that `transformers` makes of others.

    Raises:
      ValueError: kernels such as the format has no words for; says which.
    """
    parts: Parts = {}
    found: dict[Scheme, list[str]] = {}
    for entry in entries:
        ours = [kernels[path] for path in entry.row.ours if path in kernels]
        if not ours:
            continue
        if not is_matrix(entry) or len(ours) < len(entry.row.ours):
            raise ValueError(f"only matrices are written with few bits, all of one, {entry.row.theirs} is none")
        if ours[0].kind == "nf4":
            raise ValueError(f"compressed-tensors has no nf4, which {entry.row.theirs} is; it has int4 in groups")
        schemes = {_scheme(entry, each) for each in ours}
        if len(schemes) > 1:
            raise ValueError(f"kernels that are one matrix must be quantized alike, {entry.row.theirs} is of several")
        found.setdefault(schemes.pop(), []).extend(entry.names)
        for index, name in zip(entry.indices, entry.names, strict=True):
            parts |= _tensors(entry, ours, index, name.removesuffix(".weight"))
    names = {name for each in found.values() for name in each}
    whole = {name for entry in entries for name in entry.names if name.endswith(".weight")} | set(copies)
    ignored = sorted(name.removesuffix(".weight") for name in whole - names)
    return parts, _config(found, ignored), names


def _scheme(entry: Entry, kernel: Quantized) -> Scheme:
    groups, (_, inputs) = group_count(entry, kernel), matrix_size(entry)
    return Scheme(
        kernel.kind, kernel.activations, kernel.input_scale is None, kernel.zero is None,
        None if groups == 1 else inputs // groups, table=not isinstance(entry.row.layout, Matrix),
    )  # fmt: skip


def _tensors(entry: Entry, kernels: list[Quantized], index: tuple[int, ...], name: str) -> Parts:
    rows, columns = matrix_size(entry)
    first, groups = kernels[0], group_count(entry, kernels[0])

    def ones() -> list[Quantized]:
        return [layer(each, index) for each in kernels]

    def values() -> np.ndarray:
        return join(entry, [_plain(each.values) for each in ones()])

    def shared(part: str) -> np.ndarray:
        pieces = [spread(_plain(getattr(each, part)), each.shape) for each in ones()]
        return join(entry, pieces)[:, :: columns // groups]

    found: Parts = {
        f"{name}.weight_scale": (
            first.scale.dtype.itemsize * rows * groups,
            lambda: np.ascontiguousarray(shared("scale")),
        )
    }
    packed, bits = _scheme(entry, first).packed, BITS[first.kind]
    half = 2 ** (bits - 1)
    if packed:
        words = 4 * rows * -(-columns * bits // 32)
        found[f"{name}.weight_packed"] = (words, lambda: pack(values().astype(np.int16) + half, bits))
        found[f"{name}.weight_shape"] = (16, lambda: np.array([rows, columns], np.int64))
    else:
        found[f"{name}.weight"] = (rows * columns, lambda: np.ascontiguousarray(values()))
    if first.zero is not None:

        def zeros() -> np.ndarray:
            zero = shared("zero").astype(np.int16)
            return np.ascontiguousarray(pack(zero.T + half, bits).T) if packed else zero.astype(np.int8)

        found[f"{name}.weight_zero_point"] = (rows * groups, zeros)
    if first.input_scale is not None:
        found[f"{name}.input_scale"] = (4, lambda: np.asarray(ones()[0].input_scale, np.float32).reshape(1))
    return found


def _plain(values: np.ndarray) -> np.ndarray:
    """Return values in a type that takes them one byte each."""
    return values.astype(np.int8) if values.dtype == jnp.int4 else values


def _config(found: dict[Scheme, list[str]], ignored: list[str]) -> dict[str, Any]:
    groups, alike = [], sum(not scheme.table for scheme in found) == 1
    for scheme in sorted(found, key=lambda scheme: scheme.table):
        layers = [name.removesuffix(".weight") for name in found[scheme]]
        groups.append(_group(scheme, ["Linear"] if alike and not scheme.table else layers))
    formats = {group["format"] for group in groups}
    return {
        "quant_method": "compressed-tensors", "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed", "global_compression_ratio": None, "kv_cache_scheme": None,
        "ignore": ignored, "config_groups": {f"group_{number}": group for number, group in enumerate(groups)},
    }  # fmt: skip


def _group(scheme: Scheme, targets: list[str]) -> dict[str, Any]:
    weights = _numbers(scheme.kind, "channel" if scheme.group is None else "group", symmetric=scheme.symmetric)
    strategy = "token" if scheme.dynamic else "tensor"
    inputs = None if scheme.activations is None else _numbers(scheme.activations, strategy, dynamic=scheme.dynamic)
    layout = "float-quantized" if scheme.kind.startswith("float") else "int-quantized"
    return {
        "targets": targets, "weights": {**weights, "group_size": scheme.group}, "input_activations": inputs,
        "output_activations": None,
        "format": "pack-quantized" if scheme.packed else layout,
    }  # fmt: skip


def _numbers(kind: str, strategy: str, *, symmetric: bool = True, dynamic: bool = False) -> dict[str, Any]:
    return {
        "num_bits": BITS[kind], "type": "float" if kind.startswith("float") else "int", "symmetric": symmetric,
        "strategy": strategy, "group_size": None, "dynamic": dynamic, "observer": "minmax", "observer_kwargs": {},
        "actorder": None, "block_structure": None,
    }  # fmt: skip
