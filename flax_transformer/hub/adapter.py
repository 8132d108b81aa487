"""Adapters in PEFT's folders, merged into the tensors that they change: LoRA with its variants, and IA³.

Names are those of `peft`: `base_model.model.MODULE.lora_A.weight` changes the tensor `MODULE.weight`. What an adapter
has whole, as a new head or biases, replaces what the checkpoint has. Axes: r rank, O outputs, I inputs.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flax_transformer.hub.fields import Fields
from flax_transformer.hub.file import Tensor, find_folder, open_file, read_json
from flax_transformer.hub.registry import find_architecture, find_uses
from flax_transformer.hub.table import Table
from flax_transformer.listing import listed

ADAPTER = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
ROOT = "base_model.model."
FACTOR = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector|ia3_l)"
    r"(\.(?P<kind>weight|bias))?$"
)
WHOLE = ({"lora_A", "lora_B"}, {"lora_embedding_A", "lora_embedding_B"}, {"ia3_l"})
"""What a module has."""
KINDS = ("LORA", "IA3")
UNREAD = ("layer_replication", "megatron_config", "eva_config", "corda_config", "arrow_config", "use_qalora")
"""Options that change what a forward pass computes beyond a change of weights, or what factors mean."""


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter."""
    return (folder / ADAPTER).is_file()


def base_of(folder: Path) -> tuple[str, str | None]:
    """Return the checkpoint that an adapter was trained on, a folder or hub id, and its revision.

    Raises:
      ValueError: when the adapter does not say, or names itself.
    """
    config = read_json(folder / ADAPTER)
    name = config.get("base_model_name_or_path")
    if not isinstance(name, str) or not name or Path(name).resolve() == folder.resolve():
        raise ValueError(
            f"{folder / ADAPTER} must name a checkpoint as base_model_name_or_path, or hub.load(BASE, "
            f"adapters=[{folder}]), got {name!r:.80}"
        )
    return name, config.get("revision")


USES = {
    "SEQ_CLS": "classification", "TOKEN_CLS": "token-classification", "QUESTION_ANS": "question-answering",
    "CAUSAL_LM": "text-generation", "SEQ_2_SEQ_LM": "text2text-generation", "FEATURE_EXTRACTION": "feature-extraction",
}  # fmt: skip
"""What a model with an adapter does, by the adapter's `task_type`."""
HEAD = re.compile(r"(^|\.)(classifier|score|classifier\.out_proj)\.weight$")


@dataclass(frozen=True)
class Adapter:
    """A folder of an adapter: what it says, and its tensors, none of which is read yet."""

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


def read_adapter(name: Any) -> tuple[Path, dict[str, Any]]:
    """Return the folder of an adapter, a folder or hub id, and what it says.

    Raises:
      FileNotFoundError: no adapter there.
    """
    folder = find_folder(name, only=(ADAPTER, WEIGHTS))
    if not is_adapter(folder):
        raise FileNotFoundError(f"an adapter has {ADAPTER} and {WEIGHTS}, {folder} has not")
    return folder, read_json(folder / ADAPTER)


def open_adapter(name: Any) -> Adapter:
    """Open an adapter, a folder or hub id.

    Raises:
      FileNotFoundError: no adapter there.
      ValueError: one of another kind than LoRA and IA³, or with options that are not read.
    """
    folder, config = read_adapter(name)
    if config.get("peft_type") not in KINDS:
        raise ValueError(
            f"peft_type must be LORA or IA3, {folder / ADAPTER} has {config.get('peft_type')!r}; trained prompts are "
            "read by hub.read_prompt_adapter"
        )
    if unread := [name for name in UNREAD if config.get(name)]:
        raise ValueError(f"adapters with {listed(unread)} are not read, {folder / ADAPTER} has it")
    _check_alphas(config, folder)
    return Adapter(folder, config, open_file(folder / WEIGHTS))


def _check_alphas(config: Mapping[str, Any], folder: Path) -> None:
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, Mapping):
        raise ValueError(f"alpha_pattern must be a mapping, {folder / ADAPTER} has {patterns!r:.60}")
    if strange := [name for name in patterns if not re.fullmatch(r"[\w.]+", name)]:
        raise ValueError(f"alpha_pattern must name modules, {folder / ADAPTER} has {strange[0]!r:.60}")
    alphas = [config.get("lora_alpha", 8), *patterns.values()]
    if wrong := [alpha for alpha in alphas if not isinstance(alpha, int | float)]:
        raise ValueError(f"lora_alpha must be a number, {folder / ADAPTER} has {wrong[0]!r:.60}")


def fields_of(fields: Fields, adapters: Iterable[Adapter]) -> tuple[str | None, dict[str, Any]]:
    """Return the architecture of a checkpoint with adapters, and what changes in its config.json.

    Raises:
      ValueError: a family that cannot do what an adapter is for, or tied tables of which one would change.
    """
    own, changes = (fields.get("architectures") or [None])[0], {}
    for adapter in adapters:
        use = USES.get(adapter.config.get("task_type"))
        able = [] if use is None else find_uses(fields.get("model_type"), use)
        if able and own not in able:
            own = able[0]
        if ties(fields, own) and any("lora_embedding_A" in key for key in adapter.tensors):
            raise ValueError(
                f"{adapter.folder} changes the table of tokens alone, which in this checkpoint is the output layer too "
                "(tie_word_embeddings): it cannot be merged"
            )
        heads = [tensor for key, tensor in adapter.tensors.items() if HEAD.search(key)]
        changes |= {"num_labels": heads[-1].shape[0]} if heads else {}
    return own, changes


def ties(fields: Fields, architecture: str | None) -> bool:
    """Return whether the table of tokens is the output layer too."""
    if not fields.get("tie_word_embeddings", True) or architecture is None:
        return False
    return bool({"text-generation", "text2text-generation", "fill-mask"} & {*find_architecture(architecture)[1].uses})


def merge_adapters(
    tensors: Mapping[str, Tensor], adapters: Iterable[Adapter], table: Table, rename: Callable[[str], str]
) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint with adapters merged into them, one after the other; nothing is read yet.

    Args:
      tensors: of the checkpoint, by name.
      table: its rows, which say whose matrices are [I, O].
      rename: from the name of a module's tensor in `transformers` to that in files.

    Raises:
      ValueError: an adapter of another model, or one that is not whole.
    """
    merged = dict(tensors)
    turned = re.compile("|".join(rf"(^|\.){row.pattern}$" for row in table if row.turned) or r"(?!)")
    for adapter in adapters:
        _merge(merged, adapter, turned, rename)
    return merged


@dataclass(frozen=True)
class _Change:
    """What an adapter has for one module."""

    scale: float
    transposed: bool
    """Whether the module's matrix is [I, O]."""
    parts: Mapping[str, Tensor]

    def weight(self, old: np.ndarray) -> np.ndarray:
        """Return the matrix [O, I], convolution [O, I, …] or table [V, D] as changed."""
        part = {name: np.asarray(each.read(), np.float32) for name, each in self.parts.items()}
        if "ia3_l" in part:
            # [O, 1] or [1, I] of a matrix [O, I].
            return old * (part["ia3_l"].T if self.transposed else part["ia3_l"])
        if "lora_embedding_A" in part:
            return old + self.scale * (part["lora_embedding_B"] @ part["lora_embedding_A"]).T
        down, up = part["lora_A"], part["lora_B"]
        change = self.scale * np.tensordot(up.reshape(up.shape[0], -1), down, 1)
        new = (old.T if self.transposed else old) + change
        if "lora_magnitude_vector" in part:
            norms = np.sqrt(np.square(new).sum(axis=tuple(range(1, new.ndim)), keepdims=True))
            new = part["lora_magnitude_vector"].reshape(norms.shape) / norms * new
        return new.T if self.transposed else new

    def bias(self, old: np.ndarray) -> np.ndarray:
        """Return the bias as changed: where outputs are scaled, it is too."""
        scale = np.asarray(self.parts["ia3_l"].read(), np.float32)
        return old * scale.reshape(-1) if scale.size == old.size and scale.shape[0] == old.size else old


def parts_of(adapter: Adapter) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tensor]]:
    """Return what an adapter has for each module, by what it is, and the tensors that it has whole.

    Raises:
      ValueError: a module of which a part is missing, or factors with a bias.
    """
    folder, parts, whole = adapter.folder, {}, {}
    for name, tensor in adapter.tensors.items():
        name = name.removeprefix(ROOT).replace(".base_layer.", ".")
        if (found := FACTOR.match(name)) is None:
            whole[name] = tensor
        elif found["kind"] == "bias":
            raise ValueError(f"{folder}: factors with a bias of their own are not read, got {name}")
        else:
            parts.setdefault(found["module"], {})[found["part"]] = tensor
    for module, own in parts.items():
        if {*own} - {"lora_magnitude_vector"} not in WHOLE:
            raise ValueError(f"{folder}: a module has both factors or a scale, {module} has {listed(own)}")
    return parts, whole


def _merge(tensors: dict[str, Tensor], adapter: Adapter, turned: re.Pattern[str], rename: Callable[[str], str]) -> None:
    (parts, whole), folder = parts_of(adapter), adapter.folder
    for name, tensor in whole.items():
        tensors[find_name(tensors, name, rename) or rename(name)] = tensor
    for module, own in parts.items():
        name = find_name(tensors, f"{module}.weight", rename)
        if name is None:
            raise another_model(adapter, module)
        change = _Change(scale_of(adapter.config, module, own), bool(turned.search(name)), own)
        tensors[name] = _changed(tensors[name], change.weight, f"{folder}: {module}")
        bias = find_name(tensors, f"{module}.bias", rename)
        if "ia3_l" in own and bias is not None:
            tensors[bias] = _changed(tensors[bias], change.bias, f"{folder}: {module}")


def another_model(adapter: Adapter, module: str) -> ValueError:
    """Return what says that a checkpoint has not what an adapter changes."""
    return ValueError(f"{adapter.folder} is an adapter of another model: the checkpoint has no {module}.weight")


def scale_of(config: Mapping[str, Any], module: str, parts: Mapping[str, Tensor]) -> float:
    """Return α / r of a module, or α / √r; ranks are those of the factors."""
    down = parts.get("lora_A", parts.get("lora_embedding_A"))
    if down is None:
        return 1.0
    patterns = config.get("alpha_pattern") or {}
    own = next((each for each in patterns if f".{module}".endswith(f".{each}")), None)
    alpha, rank = config.get("lora_alpha", 8) if own is None else patterns[own], down.shape[0]
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def find_name(tensors: Collection[str], name: str, rename: Callable[[str], str]) -> str | None:
    """Find a tensor whose name may have more or fewer modules in front, as a base model's and one with a head's.

    Args:
      tensors: names.
      rename: as of `merge_adapters`.
    """
    return _found(tensors, name) or _found(tensors, rename(name))


def _found(tensors: Collection[str], name: str) -> str | None:
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
