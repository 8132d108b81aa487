"""Adapters in PEFT's folders, merged into the tensors that they change: LoRA with its variants, and IA³.

Names are those of `peft`: `base_model.model.MODULE.lora_A.weight` changes the tensor `MODULE.weight`. What an adapter
has whole, as a new head or biases, replaces what the checkpoint has. Axes: r rank, O outputs, I inputs.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flax_transformer.hub.fields import Fields
from flax_transformer.hub.file import Tensor, find_folder, open_file, read_json
from flax_transformer.hub.registry import find_architecture, find_uses
from flax_transformer.listing import listed

ADAPTER = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
ROOT = "base_model.model."
FACTOR = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector|ia3_l)"
    r"(\.(?P<kind>weight|bias))?$"
)
KINDS = ("LORA", "IA3")
UNREAD = ("layer_replication", "megatron_config", "eva_config", "corda_config", "arrow_config", "use_qalora")
"""Options that change what a forward pass computes beyond a change of weights, or what factors mean."""


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter."""
    return (folder / ADAPTER).is_file()


def base_of(folder: Path) -> tuple[str, str | None]:
    """Return the checkpoint that an adapter was trained on, a folder or hub id, and its revision.

    Raises:
      ValueError: when the adapter does not say.
    """
    config = read_json(folder / ADAPTER)
    name = config.get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{folder / ADAPTER} must say base_model_name_or_path, or hub.load(BASE, adapters=[{folder}])")
    return name, config.get("revision")


USES = {
    "SEQ_CLS": "classification", "TOKEN_CLS": "token-classification", "QUESTION_ANS": "question-answering",
    "CAUSAL_LM": "text-generation", "SEQ_2_SEQ_LM": "text2text-generation", "FEATURE_EXTRACTION": "feature-extraction",
}  # fmt: skip
"""What a model with an adapter does, by the adapter's `task_type`."""
HEAD = re.compile(r"(^|\.)(classifier|score|classifier\.out_proj)\.weight$")


def fields_of(fields: Fields, names: Iterable[Any]) -> tuple[str | None, dict[str, Any]]:
    """Return the architecture of a checkpoint with adapters, and what changes in its config.json."""
    own, changes = (fields.get("architectures") or [None])[0], {}
    for name in names:
        folder = find_folder(name, only=(ADAPTER, WEIGHTS))
        use = USES.get(_read_config(folder).get("task_type"))
        able = [] if use is None else find_uses(fields.get("model_type"), use)
        if able and own not in able:
            own = able[0]
        if _ties(fields, own) and any("lora_embedding_A" in key for key in open_file(folder / WEIGHTS)):
            raise ValueError(
                f"{folder} changes the table of tokens alone, which in this checkpoint is the output layer too "
                "(tie_word_embeddings): it cannot be merged"
            )
        heads = [tensor for key, tensor in open_file(folder / WEIGHTS).items() if HEAD.search(key)]
        if heads:
            changes["num_labels"] = heads[-1].shape[0]
    return own, changes


def _ties(fields: Fields, architecture: str | None) -> bool:
    if not fields.get("tie_word_embeddings", True) or architecture is None:
        return False
    return bool({"text-generation", "text2text-generation", "fill-mask"} & {*find_architecture(architecture)[1].uses})


def merge_adapters(tensors: Mapping[str, Tensor], names: Iterable[Any]) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint with adapters merged into them, one after the other; nothing is read yet.

    Args:
      tensors: of the checkpoint, by name.
      names: folders or hub ids of adapters.

    Raises:
      FileNotFoundError: no adapter there.
      ValueError: an adapter of another kind than `KINDS`, or of another model.
    """
    merged = dict(tensors)
    for name in names:
        merged = _merged(merged, find_folder(name, only=(ADAPTER, WEIGHTS)))
    return merged


@dataclass(frozen=True)
class _Change:
    """What an adapter has for one module."""

    scale: float
    transposed: bool
    """Whether the module's matrix is [I, O], where that cannot be seen by its shape."""
    parts: Mapping[str, Tensor]

    def weight(self, old: np.ndarray) -> np.ndarray:
        """Return the matrix [O, I], convolution [O, I, …] or table [V, D] as changed."""
        part = {name: np.asarray(each.read(), np.float32) for name, each in self.parts.items()}
        if "ia3_l" in part:
            # [O, 1] or [1, I] of a matrix [O, I].
            return old * (part["ia3_l"].T if self._turned(old, part["ia3_l"].shape) else part["ia3_l"])
        if "lora_embedding_A" in part:
            return old + self.scale * (part["lora_embedding_B"] @ part["lora_embedding_A"]).T
        down, up = part["lora_A"], part["lora_B"]
        change = self.scale * np.tensordot(up.reshape(up.shape[0], -1), down, 1)
        turned = change.ndim == 2 and self._turned(old, change.shape)
        new = (old.T if turned else old) + change
        if "lora_magnitude_vector" in part:
            norms = np.sqrt(np.square(new).sum(axis=tuple(range(1, new.ndim)), keepdims=True))
            new = part["lora_magnitude_vector"].reshape(norms.shape) / norms * new
        return new.T if turned else new

    def _turned(self, old: np.ndarray, shape: tuple[int, ...]) -> bool:
        """Return whether a matrix is [I, O], by its shape where that says it."""
        fits = [all(b in (1, a) for a, b in zip(old.shape, each, strict=True)) for each in (shape, shape[::-1])]
        return self.transposed if all(fits) else fits[1]

    def bias(self, old: np.ndarray) -> np.ndarray:
        """Return the bias as changed: where outputs are scaled, it is too."""
        scale = np.asarray(self.parts["ia3_l"].read(), np.float32)
        return old * scale.reshape(-1) if scale.size == old.size and scale.shape[0] == old.size else old


def _merged(tensors: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    config = _read_config(folder)
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in open_file(folder / WEIGHTS).items():
        name = name.removeprefix(ROOT).replace(".base_layer.", ".")
        if (found := FACTOR.match(name)) is None:
            tensors[_found(tensors, name) or name] = tensor
        elif found["kind"] == "bias":
            raise ValueError(f"{folder}: factors with a bias of their own are not read, got {name}")
        else:
            parts.setdefault(found["module"], {})[found["part"]] = tensor
    for module, own in parts.items():
        change = _Change(_scale(config, module, own), bool(config.get("fan_in_fan_out")), own)
        name = _found(tensors, f"{module}.weight")
        if name is None:
            raise ValueError(f"{folder} is an adapter of another model: the checkpoint has no {module}.weight")
        tensors[name] = _changed(tensors[name], change.weight, f"{folder}: {module}")
        bias = _found(tensors, f"{module}.bias")
        if "ia3_l" in own and bias is not None:
            tensors[bias] = _changed(tensors[bias], change.bias, f"{folder}: {module}")
    return tensors


def _read_config(folder: Path) -> dict[str, Any]:
    if not is_adapter(folder):
        raise FileNotFoundError(f"an adapter has {ADAPTER} and {WEIGHTS}, {folder} has not")
    config = read_json(folder / ADAPTER)
    if config.get("peft_type") not in KINDS:
        raise ValueError(f"peft_type must be LORA or IA3, {folder / ADAPTER} has {config.get('peft_type')!r}")
    if unread := [name for name in UNREAD if config.get(name)]:
        raise ValueError(f"adapters with {listed(unread)} are not read, {folder / ADAPTER} has it")
    return config


def _scale(config: Mapping[str, Any], module: str, parts: Mapping[str, Tensor]) -> float:
    """Return α / r of a module, or α / √r; ranks are those of the factors."""
    down = parts.get("lora_A", parts.get("lora_embedding_A"))
    if down is None:
        return 1.0
    patterns = config.get("alpha_pattern") or {}
    own = next((each for each in patterns if re.match(rf"(.*\.)?({each})$", module)), None)
    alpha, rank = config.get("lora_alpha", 8) if own is None else patterns[own], down.shape[0]
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _found(tensors: Mapping[str, Tensor], name: str) -> str | None:
    """Find a tensor whose name may have more or fewer modules in front, as a base model's and one with a head's."""
    rest = name
    while rest:
        if rest in tensors:
            return rest
        _, _, rest = rest.partition(".")
        if rest.count(".") < 1:
            break
    longer = [each for each in tensors if each.endswith(f".{name}")]
    return longer[0] if len(longer) == 1 else None


def _changed(tensor: Tensor, change: Callable[[np.ndarray], np.ndarray], what: str) -> Tensor:
    def read() -> np.ndarray:
        old = tensor.read()
        try:
            new = change(np.asarray(old, np.float32))
        except ValueError as error:
            raise ValueError(f"{what} is of another shape than the checkpoint's, {list(tensor.shape)}") from error
        if new.shape != tensor.shape:
            raise ValueError(f"{what} is of another shape than the checkpoint's, {list(tensor.shape)}")
        return new.astype(old.dtype)

    return Tensor(tensor.shape, tensor.dtype, read)
