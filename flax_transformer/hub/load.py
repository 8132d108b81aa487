"""Checkpoints in and out: `load` a folder or hub id, `save` what `transformers` opens, `wrap` a model made here."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from flax_transformer.frozen import frozen
from flax_transformer.hub.adapter import Adapter, base_of, fields_of, is_adapter, merge_adapters, open_adapter
from flax_transformer.hub.adapter_choice import hold_adapters
from flax_transformer.hub.diffusers_folder import is_diffusers, open_diffusers
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.file import (
    CONFIG,
    DTYPES,
    common_dtype,
    find_folder,
    open_tensors,
    read_json,
)
from flax_transformer.hub.file import Tensor as StoredTensor
from flax_transformer.hub.foreign import refuse_address
from flax_transformer.hub.pretrained import Pretrained
from flax_transformer.hub.processor.open import open_processor, open_tokenizer
from flax_transformer.hub.quantized.model import load_quantized, plain, quantized_kernels, turned, whole
from flax_transformer.hub.quantized.read import read_quantized
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.registry import find_family, read_as
from flax_transformer.hub.sentence_folder import is_sentence_folder, open_sentence_folder
from flax_transformer.hub.stored_config import with_model_type
from flax_transformer.hub.unused import Unused
from flax_transformer.hub.weights import Entry, compare, fitted, load_model, renamer, resolve, same_tensor
from flax_transformer.listing import listed
from flax_transformer.models.preset import abstract
from flax_transformer.nn import with_fields, with_precision

_MOST = 40
"""Differences that a message lists."""
GENERATION = "generation_config.json"


@frozen
class Lenient:
    """What may be otherwise than config.json and the table say; nothing is, unless it is named here.

    A head of another size, of any classifier: how many classes, or their names, and which tensors that makes new.

    >>> Lenient(config={"num_labels": 5}, initialise=("^classifier",))
    Lenient(architecture=None, config={'num_labels': 5}, ...)
    """

    architecture: str | None = None
    """Instead of `architectures[0]` of config.json: one of its family, or of that family's `kin`."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Fields of config.json to change; `num_labels`, `id2label` and `label2id` follow each other, and tables of
    positions another `image_size`."""
    rename: Mapping[str, str] = field(default_factory=dict)
    """Patterns of tensor names, and what to put there (`re.sub`)."""
    ignore: tuple[str, ...] = ()
    """Patterns of tensors that may be there besides."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """Fields of our model's config to change, at any depth, that say how it is computed or trained: `compute`,
    `remat`, `layer_drop`."""
    initialise: tuple[str, ...] = ()
    """Patterns of tensors that may be missing or of another shape; their parameters begin as in a new model."""
    seed: int = 0
    """Of what is initialised."""


def load(
    path_or_id: str | os.PathLike,
    *,
    dtype: Any = None,
    mesh: Mesh | None = None,
    revision: str | None = None,
    lenient: Lenient | None = None,
    adapters: Sequence[str | os.PathLike] | Mapping[str, str | os.PathLike] = (),
    **theirs: Any,
) -> Pretrained:
    """Load a Hugging Face checkpoint from a folder or the hub, one of sentence-transformers, or an Orbax folder.

    Shards are memory-mapped, and every parameter goes straight to the devices that keep it.

    Args:
      dtype: float32, bfloat16 or float16, of parameters and computation, by name or as NumPy, JAX or torch have it; the
        checkpoint's own by default, and with "auto".
      mesh: devices to spread over by the sharding table; the default device without one.
      revision: branch, tag or commit of a hub id.
      lenient: exceptions from "every tensor is there, in its shape, and no other".
      adapters: folders or hub ids of PEFT's adapters, LoRA or IA³, which are merged into the weights one after the
        other. A folder of an adapter alone is loaded with the checkpoint that it names. By name they are not merged
        but held beside the weights, low-rank ones of linear layers: see `hub.hold_adapters`.
      theirs: words of `transformers` that are understood are none; a sentence says what stands for each.

    Raises:
      FileNotFoundError: no such folder, or no config.json or safetensors in it.
      ValueError: an unsupported architecture or option, tensors that differ (all are listed), a broken file.
    """
    from flax_transformer.hub.convert import is_orbax, load_orbax

    _refuse_words(theirs)
    dtype = read_dtype(dtype)
    refuse_address(path_or_id)
    if isinstance(adapters, Mapping):
        whole = load(path_or_id, dtype=dtype, mesh=mesh, revision=revision, lenient=lenient)
        return hold_adapters(whole, adapters)
    folder = find_folder(path_or_id, revision)
    if is_adapter(folder) and not (folder / CONFIG).is_file():
        base, revision = base_of(folder)
        return load(base, dtype=dtype, mesh=mesh, revision=revision, lenient=lenient, adapters=(folder, *adapters))
    if is_orbax(folder):
        return load_orbax(_as_it_is(folder, lenient, adapters), dtype=dtype, mesh=mesh)
    stated, folder, beside, said = _opened(folder)
    return _filled(stated, folder, beside, said, lenient or Lenient(), [*map(open_adapter, adapters)], dtype, mesh)


def _filled(
    stated: Fields, folder: Path, beside: dict[str, StoredTensor], said: dict[str, Any], lenient: Lenient,
    adapters: Sequence[Adapter], dtype: str | None, mesh: Mesh | None,
) -> Pretrained:  # fmt: skip
    """Make the model of a folder that is opened, and fill it with the stored tensors."""
    fields, lenient = _asked(stated, lenient, adapters)
    config = read_model(fields, folder)
    family, architecture = find_family(fields)
    stored = _read_whole(fields, open_tensors(folder) | beside, folder, dtype)
    stored = merge_adapters(stored, adapters, family.table + architecture.head, renamer(family.renamed))
    if family.settled is not None and (settled := family.settled(fields, stored)) != fields:
        fields, config = settled, read_model(settled, folder)
    number = dtype or common_dtype(stored.values())
    config = with_fields(with_precision(config, compute=number, params=number), **lenient.model)
    with _named(folder / CONFIG):
        model = abstract(config)
    entries = resolve(family.rows(architecture), model)
    _check_depth(entries, stored, folder)
    tensors, left, differences = _matched(stored, entries, family, architecture, lenient)
    tensors = fitted(entries, tensors, stated, fields) if lenient.config else tensors
    differences += compare(entries, tensors, re.compile("|".join(lenient.initialise) or r"(?!)"))
    if differences:
        raise ValueError(f"{folder} is not a whole {fields['architectures'][0]}: {_listed(differences)}")
    fill = load_quantized if dtype is None else load_model
    model = fill(model, entries, tensors, mesh, lambda: config.build(nnx.Rngs(lenient.seed)))
    if fields.get("quantization_config") is not None and not quantized_kernels(model):
        fields = Fields.of({name: value for name, value in fields.items() if name != "quantization_config"})
    said = read_json(folder / family.generation) if (folder / family.generation).is_file() else said
    unused, named = Unused(), fields["architectures"][0]
    if named in (stated.get("architectures") or ()):
        unused = Unused.of(named, left.tensors, left.copies, dtype)
    return Pretrained(model, fields, open_tokenizer(folder), Fields.of(said), open_processor(folder), unused)


def new_tensors(path_or_id: str | os.PathLike, pretrained: Pretrained) -> tuple[str, ...]:
    """Name the tensors of a head that a folder or hub id has not in their shape, as the head was initialised."""
    from flax_transformer.hub.convert import is_orbax

    folder = find_folder(path_or_id)
    if is_orbax(folder):
        return ()
    stated, folder, beside, _ = _opened(folder)
    family, architecture = pretrained.family, pretrained.architecture
    entries = resolve(family.rows(architecture), plain(pretrained.model))
    stored = _read_whole(stated, open_tensors(folder) | beside, folder, None)
    found = _matched(stored, entries, family, architecture, Lenient())[0]
    head = [entry for entry in entries if entry.row in architecture.head]
    shapes = {name: entry.shape for entry in head for name in entry.names}
    return tuple(name for name, shape in shapes.items() if name not in found or found[name].shape != shape)


def _asked(stated: Fields, lenient: Lenient, adapters: Sequence[Adapter]) -> tuple[Fields, Lenient]:
    """Return the fields of what is asked for, and all exceptions, those that adapters need among them."""
    if adapters:
        own, changes = fields_of(stated, adapters)
        lenient = replace(lenient, architecture=lenient.architecture or own, config={**changes, **lenient.config})
    fields = stated.relabelled(lenient.config)
    return fields if lenient.architecture is None else read_as(fields, lenient.architecture), lenient


def _opened(folder: Path) -> tuple[Fields, Path, dict[str, StoredTensor], dict[str, Any]]:
    """Return the fields of a checkpoint, the folder in which its tensors are, those that are beside it, and how it
    generates, where that is said elsewhere.
    """
    if is_sentence_folder(folder):
        return *open_sentence_folder(folder), {}
    if is_diffusers(folder):
        fields, inside, scheduler = open_diffusers(folder)
        return fields, inside, {}, scheduler
    return Fields.of(with_model_type(read_json(folder / CONFIG))), folder, {}, {}


def _read_whole(
    fields: Fields, stored: dict[str, StoredTensor], folder: Path, dtype: str | None
) -> dict[str, StoredTensor]:
    """Return tensors of which quantized weights read as whole ones; they keep what they are in the file."""
    if (quantization := fields.get("quantization_config")) is None:
        return stored
    with _named(folder / CONFIG):
        found, stored = read_quantized(quantization, stored)
    named = fields.get("dtype", fields.get("torch_dtype"))
    return {**stored, **whole(found, dtype or (named if named in DTYPES.values() else "float32"))}


def _as_it_is(folder: Path, lenient: Lenient | None, adapters: Sequence[Any]) -> Path:
    """Return a folder that takes no exceptions, and refuse them."""
    if lenient is not None or adapters:
        raise ValueError(f"an Orbax folder is read as it is, got {folder} and exceptions to that")
    return folder


def _check_depth(entries: list[Entry], stored: Mapping[str, StoredTensor], folder: Path) -> None:
    """Refuse a config of more layers than there are tensors, before names are made for all of them."""
    deepest = max(entry.depth or 0 for entry in entries)
    if deepest > len(stored):
        raise ValueError(f"{folder / CONFIG} says that there are {deepest} layers, there are {len(stored)} tensors")


def read_dtype(dtype: Any) -> str | None:
    """Name the numbers that are asked for: in words, or as NumPy, JAX or torch have them; None for "auto" and None.

    Raises:
      ValueError: other numbers than a checkpoint may have.
    """
    if dtype is None or (isinstance(dtype, str) and dtype == "auto"):
        return None
    try:
        name = str(jnp.dtype(dtype.removeprefix("jnp.") if isinstance(dtype, str) else dtype))
    except TypeError:
        name = str(dtype).removeprefix("torch.")
    if name not in DTYPES.values():
        raise ValueError(f"dtype must be one of {', '.join(DTYPES.values())}, got {dtype!r:.60}")
    return name


_HEAD = "lenient=hub.Lenient(architecture=…, config={'num_labels': …}, initialise=('^classifier',)) says so"
_WORDS = {
    "torch_dtype": "dtype is the word",
    "architecture": _HEAD,
    "num_labels": _HEAD,
    "id2label": _HEAD,
    "label2id": _HEAD,
    "ignore_mismatched_sizes": _HEAD,
    "config": _HEAD,
    "device_map": "mesh=jax.make_mesh(…) spreads it over devices",
    "device": "mesh=jax.make_mesh(…) spreads it over devices",
    "trust_remote_code": "no code of a checkpoint is run",
    "attn_implementation": "the fastest attention of the platform is taken",
    "from_pt": "safetensors are read, whoever wrote them",
    "from_flax": "arrays of Flax are read where there are no safetensors",
}


def _refuse_words(theirs: Mapping[str, Any]) -> None:
    if theirs:
        hint = next((f"; {_WORDS[name]}" for name in theirs if name in _WORDS), "")
        raise ValueError(f"hub.load takes a folder, dtype, mesh, revision and lenient, got {listed(theirs)}{hint}")


def read_model(fields: Fields, folder: Path) -> Any:
    """Make our config of config.json's fields.

    Raises:
      ValueError: an architecture or option that is not supported; names the file.
    """
    with _named(folder / CONFIG):
        return find_family(fields)[1].config(fields)


def _listed(differences: list[str]) -> str:
    many = "s" if len(differences) > 1 else ""
    more = f"\n  … and {len(differences) - _MOST:,} more" if len(differences) > _MOST else ""
    return f"{len(differences):,} difference{many}" + "".join(f"\n  {line}" for line in differences[:_MOST]) + more


@contextlib.contextmanager
def _named(file: Path) -> Iterator[None]:
    """Return which file is refused."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


@dataclass(frozen=True)
class _Left:
    """Stored tensors that no parameter is made of: by name, and those that are another one again."""

    tensors: dict[str, StoredTensor]
    copies: list[tuple[str, str, bool]]


def _matched(
    stored: Mapping[str, StoredTensor],
    entries: list[Entry],
    family: Family,
    architecture: Architecture,
    lenient: Lenient,
) -> tuple[dict[str, StoredTensor], _Left, list[str]]:
    """Return stored tensors the names the table has, and what is left beside them; list copies that are none.

    What an exception ignores is not left: whoever makes it does without.
    """
    counters = {name for entry in entries for name in entry.counters}
    expected = {name for entry in entries for name in entry.names} | counters
    rename = renamer({**lenient.rename, **family.renamed})
    ignored = re.compile("|".join((*family.ignored, *architecture.ignored)) or r"(?!)")
    dropped = re.compile("|".join(lenient.ignore) or r"(?!)")
    prefixes = (family.prefix_of(architecture), family.prefix)
    tensors: dict[str, StoredTensor] = {}
    left = _Left({}, [])
    for name, tensor in stored.items():
        name = _prefixed(rename(name), expected, prefixes)
        if name in expected or not (ignored.search(name) or dropped.search(name)):
            (left.tensors if name in counters else tensors)[name] = tensor
        elif not dropped.search(name):
            left.tensors[name] = tensor
    differences = []
    for copy, original in family.copies.items():
        copy, original = _prefixed(copy, expected, prefixes), _prefixed(original, expected, prefixes)
        if copy not in tensors or copy in expected:
            continue
        tensor = tensors.pop(copy)
        left.copies.append((copy, original, original in tensors))
        if original not in tensors:
            tensors[original] = tensor
        elif not same_tensor(tensor, tensors[original]):
            differences.append(f"not a copy: {copy} must equal {original}, to which it is tied")
    return turned(entries, tensors), left, differences


def _prefixed(name: str, expected: set[str], prefixes: tuple[str, ...]) -> str:
    """Add, drop or change the backbone's prefix where the table has the name that way."""
    if name in expected:
        return name
    bare = next((name.removeprefix(prefix) for prefix in prefixes if prefix and name.startswith(prefix)), name)
    return next((prefix + bare for prefix in (*prefixes, "") if prefix + bare in expected), name)
