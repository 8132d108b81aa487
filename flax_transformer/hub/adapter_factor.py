"""Low-rank factors of our kernels, written as a folder that `peft` opens, and read from one.

Where several kernels of ours are one tensor of theirs, as queries, keys and values in GPT-2, the factors of all of them
are those of one: the ranks one after another, and zeros where the outputs of one meet the ranks of another. Axes: r
rank, L layers, I inputs, O outputs.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flax_transformer.hub.adapter import (
    ADAPTER,
    ROOT,
    USES,
    WEIGHTS,
    Adapter,
    another_model,
    find_name,
    open_adapter,
    parts_of,
    scale_of,
)
from flax_transformer.hub.adapter_target import Target, modules_of, shortest, targets_of
from flax_transformer.hub.file import Tensor, write_files
from flax_transformer.hub.quantized.model import plain
from flax_transformer.hub.weights import renamer, resolve, tensors_of
from flax_transformer.listing import listed
from flax_transformer.train.lora import Lora, LowRank, merge_lora

RANKS = "flax_transformer.ranks"
"""What of a tensor's ranks is whose, in the header of the file, where several kernels of ours are one tensor."""

TABLE_PARTS = "lora_embedding_A", "lora_embedding_B"
HEADED = "SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS"


@dataclass(frozen=True)
class Factors:
    """The factors of a matrix of theirs, as of a linear layer: scale · b a."""

    a: np.ndarray
    """[r, I]."""
    b: np.ndarray
    """[O, r]."""
    scale: float


def save_adapter(
    lora: Lora, pretrained: Any, folder: str | os.PathLike, *, base: str | os.PathLike = "", whole: Sequence[str] = ()
) -> None:
    """Write low-rank factors as a folder of PEFT, which `hub.load`, `load_adapter` and `peft` itself open.

    Args:
      lora: as `train.init_lora` makes it of `pretrained.model`.
      pretrained: the checkpoint that they change, without them.
      base: its folder or hub id, which the adapter names.
      whole: tensors of the checkpoint, by name, that are written as they are with their factors merged, as a new head
        that the base has not.

    Raises:
      ValueError: factors of a kernel that is no module of `transformers`, or of one scale with others in one tensor.
    """
    targets = targets_of(pretrained)
    jax.eval_shape(merge_lora, plain(pretrained.model), lora)  # refuses what does not fit
    if strange := [path for path in lora if path not in targets]:
        raise ValueError(
            f"PEFT has factors of linear layers, convolutions and tables of tokens, each a module of transformers; "
            f"{listed(strange)} is none"
        )
    chosen = {id(target): target for path, target in targets.items() if path in lora}.values()
    kept = [target for target in chosen if not {*target.entry.names} & {*whole}]
    found = {module: each for target in kept for module, each in _theirs(lora, target).items()}
    modules = modules_of(pretrained)
    tensors = _whole_tensors(lora, pretrained, whole, modules)
    for module, (target, factors) in found.items():
        tensors |= {f"{ROOT}{module}.{name}": each for name, each in _named(target, factors).items()}
    name, _, revision = str(base).partition("@")
    saved = shortest({modules[name] for name in whole}, modules.values()) if whole else None
    config = {
        "peft_type": "LORA", "task_type": _task(pretrained, whole),
        "base_model_name_or_path": name or None, "revision": revision or None,
        "bias": "none", "lora_dropout": 0.0, "inference_mode": True, "modules_to_save": saved,
        "fan_in_fan_out": any(target.is_turned for target in kept),
        "target_modules": shortest(found, modules.values()), **_sizes(found, modules.values()),
    }  # fmt: skip
    ranks = {path: span for target in kept if len(target.paths) > 1 for path, span in _spans(lora, target).items()}
    files = {WEIGHTS: _packed(tensors, ranks), ADAPTER: (json.dumps(config, indent=2) + "\n").encode()}
    write_files(files, Path(folder))


def load_adapter(folder: str | os.PathLike, pretrained: Any) -> Lora:
    """Read the low-rank factors of a folder or hub id of PEFT, as those of our kernels.

    What `save_adapter` wrote comes back bit for bit. Layers that an adapter leaves out have factors of zeros, and of
    different ranks or scales the largest rank, and the first scale, the others' within B.

    Args:
      pretrained: the checkpoint that they change.

    Raises:
      FileNotFoundError: no adapter there.
      ValueError: an adapter of another kind or of another model, or one that has more than factors.
    """
    adapter = open_adapter(folder)
    parts, whole = parts_of(adapter)
    more = [*whole, *(module for module, own in parts.items() if not {*own} <= {"lora_A", "lora_B", *TABLE_PARTS})]
    if more:
        raise ValueError(
            f"{adapter.folder} has more than low-rank factors, {listed(more)}: hub.load(BASE, adapters=[FOLDER]) "
            "merges it"
        )
    targets = {id(target): target for target in targets_of(pretrained).values()}
    places = {name: (key, i) for key, each in targets.items() for i, name in enumerate(each.entry.names)}
    rename, layers = renamer(pretrained.family.renamed), {}
    for module, own in parts.items():
        name = find_name(places, f"{module}.weight", rename)
        if name is None:
            raise another_model(adapter, module)
        key, index = places[name]
        layers.setdefault(key, {})[index] = _read(targets[key], own, scale_of(adapter.config, module, own), module)
    spans, lora = _stored_spans(adapter), {}
    for key, found in layers.items():
        own = {path: spans.pop(path) for path in targets[key].paths if path in spans}
        most = max(len(each.a) for each in found.values())
        ends = [0, *(end for _, end in own.values())]
        if own and ([start for start, _ in own.values()] != ends[:-1] or ends[-1] != most or sorted(ends) != ends):
            raise ValueError(f"{adapter.folder / WEIGHTS} says whose the {most} ranks of a tensor are, got {own}")
        lora |= _ours(targets[key], found, own or dict.fromkeys(targets[key].paths, (0, most)))
    if spans:
        raise ValueError(f"{adapter.folder / WEIGHTS} says of what ranks {listed(spans)} are, of which it has none")
    return lora


def _theirs(lora: Lora, target: Target) -> dict[str, tuple[Target, Factors]]:
    """Return the factors of each module of a row."""
    spans, place, widths = _spans(lora, target), target.placement, target.widths
    pairs = {path: lora[path] for path in spans}
    scales = {pair.scale for pair in pairs.values()}
    if len(scales) > 1:
        raise ValueError(f"{listed(spans)} are one tensor of theirs and must have one scale, got {listed(scales)}")
    rank, found = max(end for _, end in spans.values()), {}
    host = {path: (np.asarray(pair.a, np.float32), np.asarray(pair.b, np.float32)) for path, pair in pairs.items()}
    for module, index in zip(target.modules, target.entry.indices, strict=True):
        a, b = np.zeros((len(place.inputs), rank), np.float32), np.zeros((rank, sum(widths)), np.float32)
        for path, (start, end) in spans.items():
            first = sum(widths[: target.paths.index(path)])
            a[:, start:end] = host[path][0][index].reshape(len(a), -1)
            width = widths[target.paths.index(path)]
            b[start:end, first : first + width] = host[path][1][index].reshape(end - start, -1)
        found[module] = target, Factors(a[place.inputs].T, b[:, place.outputs].T, *scales)
    return found


def _spans(lora: Lora, target: Target) -> dict[str, tuple[int, int]]:
    """Return which ranks of a row's tensor are whose."""
    spans, start = {}, 0
    for path in target.paths:
        if path in lora:
            rank = lora[path].a.shape[-1]
            spans[path], start = (start, start + rank), start + rank
    return spans


def _named(target: Target, factors: Factors) -> dict[str, np.ndarray]:
    """Return factors as PEFT names and shapes them in a module of this kind."""
    a, b = factors.a, factors.b
    if target.is_table:
        return dict(zip(TABLE_PARTS, (a, b), strict=True))
    if target.is_output:
        a, b = b.T, a.T
    ones = target.entry.shape[2:]
    a, b = a.reshape(len(a), -1, *ones), b.reshape(*b.shape, *(1,) * len(ones))
    return {"lora_A.weight": a, "lora_B.weight": b}


def _read(target: Target, own: Mapping[str, Tensor], scale: float, module: str) -> Factors:
    """Read the factors of a module.

    Raises:
      ValueError: those of another shape than the module's.
    """
    names = TABLE_PARTS if target.is_table else ("lora_A", "lora_B")
    if {*own} != {*names}:
        raise ValueError(f"{module} must have {listed(names)}, got {listed(own)}")
    a, b = (np.asarray(own[name].read(), np.float32) for name in names)
    if min(a.ndim, b.ndim) < 2 or b.size != b.shape[0] * b.shape[1]:
        raise ValueError(f"factors are matrices, those of {module} have shapes {list(a.shape)} and {list(b.shape)}")
    a, b = a.reshape(len(a), -1), b.reshape(b.shape[0], b.shape[1])
    a, b = (b.T, a.T) if target.is_output else (a, b)
    wide, long = len(target.placement.inputs), len(target.placement.outputs)
    if a.shape[1] != wide or b.shape[0] != long:
        raise ValueError(
            f"{module} is of another shape than the checkpoint's: factors must have {wide} inputs and {long} outputs, "
            f"got {a.shape[1]} and {b.shape[0]}"
        )
    if len(a) != b.shape[1]:
        raise ValueError(f"both factors must have one rank, those of {module} have {len(a)} and {b.shape[1]}")
    return Factors(a, b, scale)


def _ours(target: Target, found: Mapping[int, Factors], spans: Mapping[str, Sequence[int]]) -> Lora:
    """Return the factors of a row's kernels, of all layers."""
    entry, place, lora, first = target.entry, target.placement, {}, 0
    scale = next(iter(found.values())).scale
    for path, shape, width in zip(target.paths, entry.shapes, target.widths, strict=True):
        outputs = np.flatnonzero((place.outputs >= first) & (place.outputs < first + width))
        order = np.argsort(place.outputs[outputs])
        first += width
        if path not in spans:
            continue
        start, end = spans[path]
        a = np.zeros((len(entry.indices), len(place.inputs), end - start), np.float32)
        b = np.zeros((len(entry.indices), end - start, width), np.float32)
        for index, each in found.items():
            part = slice(start, max(start, min(end, len(each.a))))
            a[index][place.inputs, : part.stop - start] = each.a[part].T
            change = each.b[outputs[order], part].T
            b[index][: part.stop - start] = change if each.scale == scale else each.scale / scale * change
        lead, inputs, outer = entry.leads, shape[: target.inputs], shape[target.inputs :]
        lora[path] = LowRank(
            jnp.asarray(a.reshape(*lead, *inputs, -1)), jnp.asarray(b.reshape(*lead, -1, *outer)), scale
        )
    return lora


def _stored_spans(adapter: Adapter) -> dict[str, tuple[int, int]]:
    """Return which ranks are whose, as far as the file says it."""
    from safetensors import safe_open

    with safe_open(adapter.folder / WEIGHTS, framework="numpy") as file:
        said = (file.metadata() or {}).get(RANKS, "{}")
    try:
        return {str(path): (int(start), int(end)) for path, (start, end) in dict(json.loads(said)).items()}
    except (TypeError, ValueError) as error:
        raise ValueError(f"{adapter.folder / WEIGHTS} has {RANKS} that say nothing, {said!r:.60}") from error


def _sizes(found: Mapping[str, tuple[Target, Factors]], among: Iterable[str]) -> dict[str, Any]:
    """Return ranks and alphas: those that most modules have, and patterns for others."""
    each = {module: (len(factors.a), _alpha(factors)) for module, (_, factors) in found.items()}
    (rank, alpha), _ = Counter(each.values()).most_common(1)[0] if each else ((8, 8), 0)
    sizes = {"r": rank, "lora_alpha": alpha, "rank_pattern": {}, "alpha_pattern": {}}
    for other in dict.fromkeys(each.values()):
        if other != (rank, alpha):
            names = shortest([module for module, size in each.items() if size == other], among)
            sizes["rank_pattern"] |= dict.fromkeys(names, other[0])
            sizes["alpha_pattern"] |= dict.fromkeys(names, other[1])
    return sizes


def _alpha(factors: Factors) -> float | int:
    """Return the alpha of which alpha / rank is exactly the scale, where there is one."""
    rank = len(factors.a)
    near = factors.scale * rank
    tries = round(near, 9), near, math.nextafter(near, math.inf), math.nextafter(near, -math.inf)
    alpha = next((each for each in tries if each / rank == factors.scale), near)
    return int(alpha) if alpha == int(alpha) else alpha


def _whole_tensors(
    lora: Lora, pretrained: Any, whole: Sequence[str], modules: Mapping[str, str]
) -> dict[str, np.ndarray]:
    """Return tensors that are written whole, by PEFT's names."""
    if not whole:
        return {}
    if unknown := [name for name in whole if name not in modules]:
        raise ValueError(f"the checkpoint has no tensor {listed(unknown)}")
    entries = resolve(pretrained.family.rows(pretrained.architecture), plain(pretrained.model))
    own = [entry for entry in entries if {*entry.names} & {*whole}]
    paths = {path for entry in own for path in entry.row.ours}
    merged = merge_lora(pretrained.model, {path: pair for path, pair in lora.items() if path in paths})
    parts = tensors_of(merged, own)
    return {f"{ROOT}{modules[name]}.{name.rpartition('.')[2]}": parts[name][1]() for name in whole}


def _task(pretrained: Any, whole: Sequence[str]) -> str | None:
    """Return what an adapter is for, by PEFT's name, of a model that reads texts alone.

    Of models with a head PEFT wants the head whole in the adapter.
    """
    able = {use: task for task, use in USES.items() if whole or task not in HEADED}
    if "text" not in pretrained.architecture.inputs.reads or len(pretrained.architecture.inputs.reads) > 1:
        return None
    return next((able[use] for use in pretrained.architecture.uses if use in able), None)


def _packed(tensors: Mapping[str, np.ndarray], ranks: Mapping[str, Sequence[int]]) -> bytes:
    from safetensors.numpy import save

    metadata = {"format": "pt"} | ({RANKS: json.dumps(ranks)} if ranks else {})
    return save({name: np.ascontiguousarray(each) for name, each in tensors.items()}, metadata)
