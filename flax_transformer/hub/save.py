"""Write checkpoints that `transformers` opens, and wrap models made here as such."""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from flax_transformer.hub.config_diff import config_diff
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.file import (
    CONFIG,
    beside,
    read_size,
    write_tensors,
)
from flax_transformer.hub.pretrained import Pretrained
from flax_transformer.hub.quantized.model import plain, quantized_kernels, whole_dtype
from flax_transformer.hub.quantized.write import write_quantized
from flax_transformer.hub.registry import find_architecture
from flax_transformer.hub.sentence import is_sentence, write_modules
from flax_transformer.hub.sentence_folder import written
from flax_transformer.hub.stored_config import without_model_type
from flax_transformer.hub.weights import resolve, tensors_of
from flax_transformer.listing import listed
from flax_transformer.models.preset import abstract
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.text.sentence import SentenceEncoderConfig


def save(pretrained: Pretrained, folder: str | os.PathLike, *, max_shard_size: int | str = "5GB") -> None:
    """Write config.json, safetensors and tokenizer files that `transformers` opens, with the names it uses itself; of a
    sentence encoder the folders of its modules too, as sentence-transformers opens them.

    Files are complete before they appear in the folder.

    Args:
      max_shard_size: bytes of a file of tensors at most, as a number or as "5GB"; a larger tensor has one of its own.

    Raises:
      ValueError: when the model is not what its config says, or a size that is none.
    """
    shard = read_size(max_shard_size)
    if pretrained.adapters:
        raise ValueError(
            f"a checkpoint that holds adapters is saved with one of them in it, or none: hub.save(pretrained.merged("
            f"{pretrained.adapters[0]!r}), folder); save_adapter writes one alone"
        )
    family, architecture = pretrained.family, pretrained.architecture
    kernels = quantized_kernels(pretrained.model)
    config = {name: value for name, value in pretrained.config.items() if name != "quantization_config"}
    entries = resolve(family.rows(architecture), plain(pretrained.model) if kernels else pretrained.model)
    if kernels:
        few, config["quantization_config"], names = write_quantized(entries, kernels, family.copies)
        entries = [entry for entry in entries if not names & set(entry.names)]
    parts = tensors_of(pretrained.model, entries) | (few if kernels else {})
    if family.writes_copies:
        parts |= {copy: parts[original] for copy, original in family.copies.items() if original in parts}
    parts = _with_buffers(pretrained, pretrained.unused.beside(parts, pretrained.config["architectures"][0]))
    if family.spelled is not None:
        parts = {family.spelled(name, pretrained.config): part for name, part in parts.items()}
    dtype = whole_dtype(pretrained.model)
    config = {**{k: v for k, v in config.items() if k != "torch_dtype"}, "dtype": dtype}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files, inside = written(config) if is_sentence(config) else ({CONFIG: without_model_type(config)}, "")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as made:
        part = Path(made)
        for path in {inside, *(name.rpartition("/")[0] for name in (*files, *parts))}:
            (part / path).mkdir(exist_ok=True)
        _write_parts(part, inside, parts, family.weights, shard)
        for name, data in files.items():
            _write_json(part / name, data)
        if pretrained.generation:
            _write_json(part / inside / family.generation, dict(pretrained.generation))
        for each in (pretrained.tokenizer, pretrained.processor):
            if each is not None:
                each.save(part / inside)
        for old in (folder / inside).glob(f"{family.weights}*.safetensors*"):
            old.unlink()
        for file in [path for path in part.rglob("*") if path.is_file()]:
            shutil.move(file, beside(folder, str(file.relative_to(part))))


def _with_buffers(pretrained: Pretrained, parts: Mapping[str, tuple[int, Any]]) -> Mapping[str, tuple[int, Any]]:
    """Return all tensors of a file, with what its class computes of config.json, where the model was made here; of a
    checkpoint that was read only what has another shape now.
    """
    if (buffers := pretrained.architecture.buffers) is None:
        return parts
    dtype, unused = jnp.dtype(whole_dtype(pretrained.model)), pretrained.unused
    shapes = {each.name: each.shape for each in unused.tensors}
    made = {
        name: x.astype(dtype)
        for name, x in buffers(pretrained.config).items()
        if not unused.architecture or shapes.get(name, x.shape) != x.shape
    }
    return {**parts, **{name: (x.nbytes, lambda x=x: x) for name, x in made.items()}}


def _write_parts(part: Path, inside: str, parts: Mapping[str, tuple[int, Any]], stem: str, shard: int) -> None:
    """Write tensors, each into the folder that its name begins with, or into the Transformer's."""
    for path in dict.fromkeys(name.rpartition("/")[0] for name in parts):
        names = {name.rpartition("/")[2]: name for name in parts if name.rpartition("/")[0] == path}
        write_tensors(
            part / (path or inside),
            {short: parts[name][0] for short, name in names.items()},
            lambda short, names=names: parts[names[short]][1](),
            stem,
            shard,
        )


def wrap(model: Any, architecture: str, *, tokenizer: Any = None, processor: Any = None, **fields: Any) -> Pretrained:
    """Wrap a model made here as a checkpoint, to call, generate with and `save`.

    Args:
      model: of this package; its config must be one that the architecture can have.
      architecture: a class of `transformers`, as "GPT2LMHeadModel".
      tokenizer: a `HubTokenizer`.
      processor: an `ImageProcessor`.
      fields: of config.json besides those that say what the model is: `pad_token_id`, `id2label` and so on.

    Raises:
      ValueError: an unknown architecture, or a model that it cannot be.
    """
    family, known = find_architecture(architecture)
    if family.looks is not None and isinstance(model.cfg, Seq2SeqConfig):
        family = family.looks()
        known = family.architectures.get(architecture, known)
    model = model if family.adopt is None else family.adopt(model)
    head, backbone, said = getattr(model.cfg, "head", None), model.cfg, {}
    if isinstance(model.cfg, SentenceEncoderConfig) and "sentence-similarity" not in known.uses:
        backbone, said = model.cfg.backbone, write_modules(model.cfg.head)
    bare = bool(said and known.at) and not hasattr(backbone, known.at.partition(".")[0])
    said |= {} if known.writes is None else known.writes(backbone)
    backbone = backbone if bare else known.backbone_of(backbone)
    labels = {} if head is None or not head.outputs else {"num_labels": head.outputs}
    config = {"model_type": family.model_type, "architectures": [architecture], **family.write(backbone), **said}
    config |= {"has_pooler": False} if bare else {}
    if family.tokens in config:
        ids = {name: fields.pop(name) for name in list(fields) if name.endswith("_token_id")}
        ids = {name: ids[usual] for name, usual in family.marks.items() if usual in ids} | ids
        config[family.tokens] = {**config[family.tokens], **ids}
    pretrained = Pretrained(model, Fields.of(config).relabelled({**labels, **fields}), tokenizer, processor=processor)
    again = pretrained.architecture.config(pretrained.config)
    if is_sentence(pretrained.config):
        backbone, inner = model.cfg, again
    else:
        inner = known.backbone_of(again)
    lost = config_diff(backbone, inner)
    if not lost:
        rows = pretrained.family.rows(pretrained.architecture)
        sizes = ([entry.shapes for entry in resolve(rows, plain(each))] for each in (model, abstract(again)))
        lost = [] if next(sizes) == next(sizes) else ["other shapes"]
    if lost:
        raise ValueError(
            f"a {architecture} cannot be the model given; its config.json would describe one with "
            f"{listed(lost, longest=200)}"
        )
    return pretrained


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
