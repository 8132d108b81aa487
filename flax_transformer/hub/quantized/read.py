"""Quantized weights in: which tensors of a folder are one matrix, for every method that is read."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from flax_transformer.hub.file import Tensor
from flax_transformer.hub.quantized.weight import StoredWeight, number, unpack

Stored = Mapping[str, Tensor]
Found = dict[str, StoredWeight]
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where AWQ puts the eight values of a word."""


def read_quantized(config: Mapping[str, Any], stored: Stored) -> tuple[Found, dict[str, Tensor]]:
    """Find the quantized weights of a folder, by the names that whole ones would have, and the tensors that remain.

    Args:
      config: the `quantization_config` of config.json.

    Raises:
      ValueError: a method or option that is not read, or tensors that do not belong together; says which.
    """
    method = str(config.get("quant_method", "bitsandbytes" if "load_in_8bit" in config else None))
    if method not in METHODS:
        raise ValueError(f"quantization_config has quant_method={method!r}; read are {', '.join(METHODS)}")
    found, used = METHODS[method](dict(config), stored)
    return found, {name: tensor for name, tensor in stored.items() if name not in used}


def _named(stored: Stored, ending: str) -> list[str]:
    """Return the layers that have a tensor of an ending."""
    return [name.removesuffix(ending) for name in stored if name.endswith(ending)]


def _tensor(stored: Stored, name: str, *, rank: int | None = None) -> Tensor:
    if name not in stored:
        raise ValueError(f"a quantized weight must be whole, {name} is missing")
    tensor = stored[name]
    if rank is not None and len(tensor.shape) != rank:
        raise ValueError(f"{name} must have {rank} axes, got {list(tensor.shape)}")
    return tensor


def _float(tensor: Tensor, shape: tuple[int, ...] | None = None) -> Callable[[], np.ndarray]:
    return lambda: _read_scale(tensor).reshape(tensor.shape if shape is None else shape)


def _read_scale(tensor: Tensor) -> np.ndarray:
    """Read scales: of 16 bits as they are, others in float32."""
    found = np.asarray(tensor.read())
    return found if found.dtype in (np.float16, jnp.bfloat16) else found.astype(np.float32)


def _check_groups(name: str, shape: tuple[int, ...], inputs: int, group: int | None) -> None:
    groups = shape[-1]
    if groups < 1 or inputs % groups or (group not in (None, -1) and inputs // groups != group and groups > 1):
        raise ValueError(f"{name} must have a scale for every {group} of {inputs} inputs, got {list(shape)}")


def _compressed_tensors(config: dict[str, Any], stored: Stored) -> tuple[Found, set[str]]:
    """https://github.com/vllm-project/compressed-tensors: matrices of int8, float8, or packed ones of 4 or 8 bits."""
    groups = check_groups(config)
    found, used = {}, set()
    for layer in _named(stored, ".weight_scale"):
        found[f"{layer}.weight"], names = _compressed(layer, _group_of(layer, groups), stored)
        used |= names
    return found, used


def check_groups(config: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the groups of layers of compressed-tensors.

    Raises:
      ValueError: when there are none, or an option in one is not read.
    """
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups or not all(isinstance(each, Mapping) for each in groups.values()):
        raise ValueError("quantization_config must have config_groups of compressed-tensors, got none")
    for group in groups.values():
        _check_group(group)
    return groups


def _check_group(group: Mapping[str, Any]) -> None:
    weights, inputs = group.get("weights") or {}, group.get("input_activations") or {}
    if not isinstance(weights, Mapping) or not isinstance(inputs, Mapping):
        raise ValueError(f"quantization_config has weights and input_activations as objects, got {weights!r:.40}")
    size = weights.get("group_size")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool)):
        raise ValueError(f"quantization_config has group_size={size!r}, which must be a number of inputs")
    bits, kind = number(weights, "num_bits", (4, 8)), number(weights, "type", ("int", "float"))
    number(weights, "strategy", ("tensor", "channel", "group"))
    number(weights, "symmetric", (True, False), True)
    number(weights, "actorder", (None, "weight", "static", False))
    if group.get("output_activations"):
        raise ValueError("quantization_config has output_activations, which are not supported")
    if kind == "float" and bits != 8:
        raise ValueError(f"quantization_config has floats of {bits} bits, of which 8 are supported")
    if inputs:
        number(inputs, "num_bits", (8,))
        number(inputs, "type", ("int", "float"))


def _group_of(layer: str, groups: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the group that a layer is in: one that names it, or its pattern, or else one of a whole class."""
    for group in groups.values():
        for target in group.get("targets") or ():
            if target == layer or (str(target).startswith("re:") and re.match(target[3:], layer)):
                return group
    whole = (group for group in groups.values() if {"Linear", "Embedding"} & set(group.get("targets") or ()))
    if (found := next(whole, None)) is None:
        raise ValueError(f"quantization_config must say what {layer} is, none of its targets names it")
    return found


def _compressed(layer: str, group: Mapping[str, Any], stored: Stored) -> tuple[StoredWeight, set[str]]:
    weights, inputs = group["weights"], group.get("input_activations") or {}
    bits, scale = weights["num_bits"], _tensor(stored, f"{layer}.weight_scale")
    names = {f"{layer}.weight_scale", f"{layer}.weight_zero_point", f"{layer}.input_scale", f"{layer}.input_zero_point"}
    if f"{layer}.weight_packed" in stored:
        packed = _tensor(stored, f"{layer}.weight_packed", rank=2)
        rows, columns = (int(size) for size in _tensor(stored, f"{layer}.weight_shape", rank=1).read())
        if rows != packed.shape[0] or not 0 < columns <= packed.shape[1] * (32 // bits):
            raise ValueError(f"{layer}.weight_shape must fit {list(packed.shape)} words, got {rows}, {columns}")
        names |= {f"{layer}.weight_packed", f"{layer}.weight_shape"}
        values = _signed(packed, bits, columns)
    else:
        whole = _tensor(stored, f"{layer}.weight", rank=2)
        (rows, columns), values = whole.shape, whole.read
        names.add(f"{layer}.weight")
    shape = scale.shape if len(scale.shape) == 2 else (1, 1)
    _check_groups(f"{layer}.weight_scale", shape, columns, weights.get("group_size"))
    zero = None
    if not weights.get("symmetric", True):
        zero = _zeros(stored, f"{layer}.weight_zero_point", bits, (rows, shape[1]))
    static = stored.get(f"{layer}.input_scale") if inputs and not inputs.get("dynamic") else None
    return StoredWeight(
        (rows, columns), f"int{bits}" if weights["type"] == "int" else "float8_e4m3fn", values, _float(scale, shape),
        zero, activations={"int": "int8", "float": "float8_e4m3fn"}[inputs["type"]] if inputs else None,
        input_scale=None if static is None else _float(static), scale_width=shape[1],
    ), names  # fmt: skip


def _signed(packed: Tensor, bits: int, columns: int) -> Callable[[], np.ndarray]:
    half = 2 ** (bits - 1)
    return lambda: (unpack(np.ascontiguousarray(packed.read()), bits, columns).astype(np.int16) - half).astype(np.int8)


def _zeros(stored: Stored, name: str, bits: int, shape: tuple[int, int]) -> Callable[[], np.ndarray]:
    tensor = _tensor(stored, name, rank=2)
    if tensor.shape == shape:
        return lambda: tensor.read().astype(np.int8)
    half = 2 ** (bits - 1)
    return lambda: (
        (unpack(np.ascontiguousarray(tensor.read().T), bits, shape[0]).astype(np.int16) - half).astype(np.int8).T
    )


def _gptq(config: dict[str, Any], stored: Stored) -> tuple[Found, set[str]]:
    """GPTQ's own: words along the inputs, zeros that are one less where the format is of before."""
    bits = number(config, "bits", (2, 4, 8))
    before = number(config, "checkpoint_format", ("gptq", "gptq_v2"), "gptq") == "gptq"
    found, used = {}, set()
    for layer in _named(stored, ".qweight"):
        words = _tensor(stored, f"{layer}.qweight", rank=2)
        scales = _tensor(stored, f"{layer}.scales", rank=2)
        zeros = _tensor(stored, f"{layer}.qzeros", rank=2)
        (packed, outputs), groups = words.shape, scales.shape[0]
        inputs = packed * (32 // bits)
        _check_groups(f"{layer}.scales", scales.shape[::-1], inputs, config.get("group_size"))
        index = None
        if f"{layer}.g_idx" in stored:
            index = np.asarray(stored[f"{layer}.g_idx"].read()).astype(np.int64)
            if index.shape != (inputs,) or index.min() < 0 or index.max() >= groups:
                raise ValueError(f"{layer}.g_idx must number the {groups} groups of {inputs} inputs")
            index = None if (index == np.arange(inputs) * groups // inputs).all() else index

        def values(words=words, inputs=inputs) -> np.ndarray:
            rows = unpack(np.ascontiguousarray(words.read().T), bits, inputs)
            return (rows.astype(np.int16) - 2 ** (bits - 1)).astype(np.int8)

        def zero(zeros=zeros, outputs=outputs, index=index) -> np.ndarray:
            found = unpack(np.ascontiguousarray(zeros.read()), bits, outputs).astype(np.int16)
            found = ((found + 1) % 2**bits if before else found) - 2 ** (bits - 1)
            return (found if index is None else found[index]).T.astype(np.int8)

        def scale(scales=scales, index=index) -> np.ndarray:
            found = _read_scale(scales)
            return (found if index is None else found[index]).T

        found[f"{layer}.weight"] = StoredWeight(
            (outputs, inputs), f"int{bits}", values, scale, zero, scale_width=groups if index is None else inputs
        )
        used |= {f"{layer}.{name}" for name in ("qweight", "scales", "qzeros", "g_idx")}
    return found, used


def _awq(config: dict[str, Any], stored: Stored) -> tuple[Found, set[str]]:
    """AWQ's own: words along the outputs, whose values lie in an order of their own."""
    number(config, "bits", (4,))
    number(config, "version", ("gemm", "GEMM"), "gemm")
    found, used = {}, set()

    def unpacked(tensor: Tensor) -> np.ndarray:
        parts = unpack(np.ascontiguousarray(tensor.read()), 4, tensor.shape[1] * 8)
        ordered = parts.reshape(parts.shape[0], -1, 8)[..., list(AWQ_ORDER)].reshape(parts.shape)
        return (ordered.astype(np.int16) - 8).astype(np.int8).T

    for layer in _named(stored, ".qweight"):
        words, zeros = (_tensor(stored, f"{layer}.{name}", rank=2) for name in ("qweight", "qzeros"))
        scales = _tensor(stored, f"{layer}.scales", rank=2)
        inputs, outputs = words.shape[0], words.shape[1] * 8
        group = config.get("group_size", config.get("q_group_size"))
        _check_groups(f"{layer}.scales", scales.shape[::-1], inputs, group)
        found[f"{layer}.weight"] = StoredWeight(
            (outputs, inputs), "int4", lambda words=words: unpacked(words),
            lambda scales=scales: _read_scale(scales).T, lambda zeros=zeros: unpacked(zeros),
            scale_width=scales.shape[0],
        )  # fmt: skip
        used |= {f"{layer}.{name}" for name in ("qweight", "scales", "qzeros")}
    return found, used


def _fp8(config: dict[str, Any], stored: Stored) -> tuple[Found, set[str]]:
    """FP8 of blocks of outputs and inputs, as DeepSeek's (`weight_scale_inv`), or of whole matrices or rows."""
    found, used = {}, set()
    ending = ".weight_scale_inv" if _named(stored, ".weight_scale_inv") else ".weight_scale"
    for layer in _named(stored, ending):
        whole, scale = _tensor(stored, f"{layer}.weight", rank=2), stored[f"{layer}{ending}"]
        rows, columns = whole.shape
        shape = scale.shape if len(scale.shape) == 2 else (scale.shape[0], 1) if scale.shape else (1, 1)
        size = config.get("weight_block_size") or [-(-rows // shape[0]), -(-columns // shape[1])]
        if shape != (-(-rows // size[0]), -(-columns // size[1])):
            raise ValueError(f"{layer}{ending} must have a scale for each {size[0]}×{size[1]} of {rows}×{columns}")

        def full(scale=scale, shape=shape, size=size, rows=rows, columns=columns) -> np.ndarray:
            found = np.asarray(scale.read()).astype(np.float32).reshape(shape)
            return np.repeat(np.repeat(found, size[0], 0)[:rows], size[1], 1)[:, :columns]

        by_rows = size[1] >= columns
        found[f"{layer}.weight"] = StoredWeight(
            whole.shape, "float8_e4m3fn", whole.read,
            (lambda full=full: full()[:, :1]) if by_rows else full, scale_width=1 if by_rows else columns,
        )  # fmt: skip
        used |= {f"{layer}.weight", f"{layer}{ending}", f"{layer}.input_scale", f"{layer}.activation_scale"}
    return found, used


def _bitsandbytes(config: dict[str, Any], stored: Stored) -> tuple[Found, set[str]]:
    """Bitsandbytes: int8 of rows (`SCB`), and 4 bits that are indices of a table, in blocks of all values in order."""
    found, used = {}, set()
    for layer in _named(stored, ".SCB"):
        whole, scale = _tensor(stored, f"{layer}.weight", rank=2), _tensor(stored, f"{layer}.SCB", rank=1)
        found[f"{layer}.weight"] = StoredWeight(
            whole.shape, "int8", whole.read, lambda scale=scale: scale.read().astype(np.float32)[:, None] / 127
        )
        used |= {f"{layer}.weight", f"{layer}.SCB", f"{layer}.weight_format"}
    for state in [name for name in stored if ".weight.quant_state.bitsandbytes__" in name]:
        layer = state.partition(".weight.quant_state.")[0]
        found[f"{layer}.weight"], names = _by_table(layer, state, stored)
        used |= {f"{layer}.weight", state, *names}
    return found, used


def _by_table(layer: str, state: str, stored: Stored) -> tuple[StoredWeight, set[str]]:
    try:
        about = json.loads(bytes(stored[state].read().astype(np.uint8)))
        shape, block = tuple(int(size) for size in about["shape"]), int(about["blocksize"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{state} must be JSON with shape and blocksize: {error}") from error
    packed, absmax = (_tensor(stored, f"{layer}.weight{end}") for end in ("", ".absmax"))
    if len(shape) != 2 or packed.shape[0] * 2 < shape[0] * shape[1] or block < 1:
        raise ValueError(f"{state} must describe {layer}.weight {list(packed.shape)}, got shape {list(shape)}")
    nested = {end: f"{layer}.weight.nested_{end}" for end in ("absmax", "quant_map")}

    def indices() -> np.ndarray:
        bytes_ = packed.read().reshape(-1)
        return np.stack([bytes_ >> 4, bytes_ & 15], axis=1).reshape(-1)[: shape[0] * shape[1]].reshape(shape)

    def scale() -> np.ndarray:
        found = absmax.read()
        if nested["absmax"] in stored:  # the scales are quantized too, about their mean
            table, outer = (stored[nested[end]].read().astype(np.float32) for end in ("quant_map", "absmax"))
            wide = np.repeat(outer, int(about["nested_blocksize"]))[: found.size]
            found = table[found] * wide + float(about["nested_offset"])
        return np.repeat(found.astype(np.float32), block)[: shape[0] * shape[1]].reshape(shape)

    names = {f"{layer}.weight.{end}" for end in ("absmax", "quant_map")} | set(nested.values())
    table = _float(_tensor(stored, f"{layer}.weight.quant_map"))
    return StoredWeight(shape, "nf4", indices, scale, table=table, scale_width=shape[1]), names


METHODS: dict[str, Callable[[dict[str, Any], Stored], tuple[Found, set[str]]]] = {
    "compressed-tensors": _compressed_tensors, "gptq": _gptq, "awq": _awq, "fp8": _fp8, "fbgemm_fp8": _fp8,
    "bitsandbytes": _bitsandbytes,
}  # fmt: skip
"""By `quant_method`."""
