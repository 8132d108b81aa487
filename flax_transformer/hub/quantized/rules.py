"""Which kernels have few bits, by config.json alone: what `read_quantized` would find if the tensors were there."""

import re
from collections.abc import Mapping
from typing import Any

from flax_transformer.hub.quantized.layout import is_matrix
from flax_transformer.hub.quantized.read import METHODS, check_groups
from flax_transformer.hub.quantized.weight import number
from flax_transformer.hub.quantized.write import Scheme
from flax_transformer.hub.table import Matrix
from flax_transformer.hub.weights import Entry


def stored_schemes(config: Any, entries: list[Entry]) -> dict[str, Scheme]:
    """Return how the kernels and tables of few bits are quantized, by path.

    Matrices that `hub.load` makes whole are left out: those of bitsandbytes' 4 bits, GPTQ's in an order of inputs of
    its own or of 2 bits, and FP8 in blocks.

    Args:
      config: the `quantization_config` of config.json.
      entries: of the model with whole kernels.

    Raises:
      ValueError: what is no such config, or has methods or options that are not read.
    """
    if not isinstance(config, Mapping):
        raise ValueError(f"quantization_config must be an object, got {config!r:.60}")
    config = dict(config)
    method = str(config.get("quant_method", "bitsandbytes" if "load_in_8bit" in config else None))
    if method not in METHODS:
        raise ValueError(f"quantization_config has quant_method={method!r}; read are {', '.join(METHODS)}")
    found = {}
    groups = check_groups(config) if method == "compressed-tensors" else None
    alike = None if groups is not None else _alike(method, config)
    names = "ignore" if groups is not None else "modules_to_not_convert"
    for entry in entries:
        layer = entry.names[0].removesuffix(".weight")
        if not is_matrix(entry) or any(_named(str(each), layer) for each in config.get(names) or ()):
            continue
        linear = isinstance(entry.row.layout, Matrix)
        scheme = alike if linear else None
        if groups is not None:
            scheme = _of_groups(layer, "Linear" if linear else "Embedding", groups)
        found |= {} if scheme is None else dict.fromkeys(entry.row.ours, scheme)
    return found


def _named(target: str, layer: str) -> bool:
    """Return whether a target is a layer, a pattern of its name, or what it is in."""
    if target.startswith("re:"):
        return re.match(target[3:], layer) is not None
    return target == layer or layer.startswith(f"{target}.") or layer.endswith(f".{target}")


def _of_groups(layer: str, kind: str, groups: Mapping[str, Mapping[str, Any]]) -> Scheme | None:
    targets = {name: [str(each) for each in group.get("targets") or ()] for name, group in groups.items()}
    named = (name for name, each in targets.items() if any(_named(target, layer) for target in each))
    name = next(named, next((name for name, each in targets.items() if kind in each), None))
    if name is None:
        return None
    weights, inputs = groups[name]["weights"], groups[name].get("input_activations")
    size = weights.get("group_size")
    return Scheme(
        kind=f"int{weights['num_bits']}" if weights["type"] == "int" else "float8_e4m3fn",
        activations={"int": "int8", "float": "float8_e4m3fn"}[inputs["type"]] if inputs else None,
        dynamic=bool(inputs and inputs.get("dynamic")), symmetric=weights.get("symmetric", True),
        group=size if size and size > 0 else None,
    )  # fmt: skip


def _alike(method: str, config: dict[str, Any]) -> Scheme | None:
    """Return how all linear layers are quantized by a method that has no groups of layers; None: not as they stay."""
    size = config.get("group_size", config.get("q_group_size"))
    if size is not None and (not isinstance(size, int) or isinstance(size, bool)):
        raise ValueError(f"quantization_config has group_size={size!r}, which must be a number of inputs")
    group = size if size and size > 0 else None
    if method == "bitsandbytes":
        return Scheme("int8", None, True, True, None) if config.get("load_in_8bit") else None
    if method in ("fp8", "fbgemm_fp8"):
        return None if config.get("weight_block_size") else Scheme("float8_e4m3fn", None, True, True, None)
    bits = number(config, "bits", (4,) if method == "awq" else (2, 4, 8))
    if bits == 2 or (config.get("desc_act") and group is not None):
        return None
    return Scheme(f"int{bits}", None, True, False, group)
