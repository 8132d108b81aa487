"""Checkpoint folders: config.json and weights, one file or shards with an index, read lazily and written whole."""

import fnmatch
import json
import logging
import math
import mmap
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from flax_transformer.atomic import write_file
from flax_transformer.listing import listed
from flax_transformer.train.config import parse_object

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
DIFFUSION = "diffusion_pytorch_model.safetensors"
FLAX, FLAX_INDEX = "flax_model.msgpack", "flax_model.msgpack.index.json"
SHARD_BYTES = 5 * 1000**3
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5")
PATTERNS = (
    "*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "chat_template.jinja", "additional_chat_templates/*.jinja",
)  # fmt: skip
"""What is downloaded: nothing that could be code, but for chat templates, which run confined."""

DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
OTHERS = {
    "F8_E4M3": "float8_e4m3fn", "I8": "int8", "U8": "uint8", "I16": "int16", "U16": "uint16", "I32": "int32",
    "U32": "uint32", "I64": "int64", "U64": "uint64", "F64": "float64", "BOOL": "bool",
}  # fmt: skip
"""What quantized weights are made of, and tensors that no model uses."""


def find_folder(
    path_or_id: str | os.PathLike, revision: str | None = None, *, only: Collection[str] | None = None
) -> Path:
    """Return the folder of a checkpoint: a local one as it is, a hub id downloaded at a revision.

    Without a revision, what came is logged as a warning, with the name that would pin it.

    Args:
      path_or_id: a folder, OWNER/NAME, or OWNER/NAME@REVISION.
      revision: branch, tag or commit.
      only: patterns of the files that are wanted; by default all that make a model.

    Raises:
      FileNotFoundError: when it is neither a folder nor a hub id.
      ValueError: when a revision is asked of a local folder, two are asked for, or the hub has no such thing.
    """
    path = Path(path_or_id)
    if path.is_dir():
        if revision is not None:
            raise ValueError(f"only a hub id has revisions, got the folder {path} and revision {revision!r}")
        return path
    found = re.fullmatch(r"(?P<name>\w[\w.-]*(/[\w.-]+)?)(@(?P<revision>\w[\w./-]*))?", str(path_or_id))
    if not found:
        raise FileNotFoundError(f"no folder {path}, and no hub id: those are NAME or OWNER/NAME, perhaps @REVISION")
    if revision and found["revision"]:
        raise ValueError(f"one revision must be asked for, got {path_or_id} and {revision!r}")
    name, revision = found["name"], revision or found["revision"]
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=list(only or PATTERNS)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"no folder {path}, and the hub did not give {path_or_id}: {reason}") from error
    if only is not None:
        return folder
    if not any(folder.glob("*.safetensors")):
        _download_others(name, folder)
    if revision is None:
        logging.getLogger(__name__).warning(
            "%s is what its owner last pushed, commit %s; %s@%s is the same for ever",
            name,
            folder.name,
            name,
            folder.name,
        )
    return folder


def _download_others(name: str, folder: Path) -> None:
    """Search the hub for other weights than safetensors, at the commit that came: Flax's come too.

    Raises:
      ValueError: there are only such as can hold code.
    """
    from huggingface_hub import list_repo_files, snapshot_download

    try:
        files = list_repo_files(name, revision=folder.name)
        if any(file in (FLAX, FLAX_INDEX) for file in files):
            snapshot_download(name, revision=folder.name, allow_patterns=["flax_model*.msgpack*"])
            return
    except OSError:  # without the hub, what came is what there is
        return
    _refuse_pickles(name, [file for pattern in PICKLES for file in fnmatch.filter(files, pattern)], folder)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
      FileNotFoundError: no such file.
      ValueError: not a JSON object; names the file.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no {path.name} in {path.parent}")
    return parse_object(path.read_bytes(), path)


def beside(folder: Path, name: str) -> Path:
    """Return the place of a file in a folder, its own folder made; a link in the place of that one is not followed."""
    path = folder / name
    if path.parent != folder:
        if path.parent.is_symlink():
            path.parent.unlink()
        path.parent.mkdir(exist_ok=True)
    return path


def write_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files, by name, into a folder that is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_file(beside(folder, name), content)


@dataclass(frozen=True)
class Tensor:
    """A tensor that is in a file: shape and type are known."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray]
    """Gives a view of the file, not to be kept: the memory that views take is given back at the next call."""


def open_tensors(folder: Path) -> dict[str, Tensor]:
    """Open the weights of a folder, memory-mapped; nothing is read yet.

    Raises:
      FileNotFoundError: no safetensors, and no arrays of Flax.
      ValueError: a pickle instead, a broken or missing shard, or a tensor of another type than the floats.
    """
    from flax_transformer.hub.flax_file import open_flax

    tensors: dict[str, Tensor] = {}
    files, read = _files(folder, WEIGHTS, INDEX) or _files(folder, DIFFUSION, f"{DIFFUSION}.index.json"), open_file
    if not files:
        files, read = _files(folder, FLAX, FLAX_INDEX), open_flax
    if not files:
        _refuse_pickles(
            str(folder), [each.name for pattern in PICKLES for each in sorted(folder.glob(pattern))], folder
        )
        raise FileNotFoundError(f"no {WEIGHTS} or {INDEX} in {folder}, and no {FLAX}")
    for file in files:
        for name, tensor in read(file).items():
            if name in tensors:
                raise ValueError(f"a tensor must be in one file, {name} is in {file} and in another")
            tensors[name] = tensor
    return tensors


def open_file(file: Path) -> dict[str, Tensor]:
    """Map one file; `safetensors` checks that it is whole, and where tensors lie stands in its header.

    Raises:
      ValueError: it is not whole.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy"), open(file, "rb") as opened:
            start = 8 + int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(start - 8))
            content = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"{file} is not a whole safetensors file: {error}") from error
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            dtype, shape = (DTYPES | OTHERS).get(entry["dtype"], entry["dtype"]), tuple(entry["shape"])
            tensors[name] = Tensor(
                shape, dtype, partial(_view, content, start + entry["data_offsets"][0], shape, dtype)
            )
    return tensors


def _view(content: mmap.mmap, offset: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    content.madvise(mmap.MADV_DONTNEED)  # pages once read count as memory of this process until they are let go
    return np.frombuffer(content, jnp.dtype(dtype), math.prod(shape), offset).reshape(shape)


def common_dtype(arrays: Iterable[Any]) -> str:
    """Find the floats that most numbers are in, of arrays or tensors; float32 where there are none."""
    sizes: dict[str, int] = {}
    for each in arrays:
        sizes[str(each.dtype)] = sizes.get(str(each.dtype), 0) + math.prod(each.shape)
    floats = {name: size for name, size in sizes.items() if name in DTYPES.values()}
    return max(floats, key=floats.get, default="float32")


def _files(folder: Path, whole: str, shards: str) -> list[Path]:
    """Return the files of one kind that weights are in, none where there are none of it."""
    if (folder / whole).is_file():
        return [folder / whole]
    if not (folder / shards).is_file():
        return []
    index = read_json(folder / shards).get("weight_map")
    if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
        raise ValueError(f"{folder / shards} must have a weight_map from tensor to file name")
    files = sorted(set(index.values()))
    outside = [name for name in files if Path(name).name != name or name == ".."]
    if outside:
        raise ValueError(f"shards must lie beside their index, {folder / shards} names {outside[0]!r}")
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} lacks {listed(missing)}, which its index names")
    return [folder / name for name in files]


def _refuse_pickles(where: str, pickles: list[str], folder: Path) -> None:
    """Return what becomes of a checkpoint that may hold code, and how its own class makes another of it.

    Raises:
      ValueError: there are such files.
    """
    if not pickles:
        return
    named = read_json(folder / CONFIG).get("architectures") if (folder / CONFIG).is_file() else None
    known = isinstance(named, list) and named and isinstance(named[0], str) and named[0].isidentifier()
    raise ValueError(
        f"{where} has only {', '.join(pickles[:3])}; such files can run code when opened and are not read. "
        f"Convert them where you trust them, with transformers: {named[0] if known else 'CLASS'}.from_pretrained(…)"
        ".save_pretrained(…) writes safetensors" + ("" if known else "; CLASS is the model's, its head included")
    )


def read_size(size: int | str) -> int:
    """Read bytes as `transformers` spells them.

    >>> read_size("5GB"), read_size("200MB"), read_size(4096)
    (5000000000, 200000000, 4096)

    Raises:
      ValueError: none, or another spelling.
    """
    units = {"B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4}
    found = re.fullmatch(r"(\d+)\s*([KMGT]?B)?", str(size).upper())
    if not found or isinstance(size, bool) or int(found[1]) < 1:
        raise ValueError(f"a size is a number of bytes, or a text such as '5GB' or '200MB', got {size!r:.40}")
    return int(found[1]) * units[found[2] or "B"]


def write_tensors(
    folder: Path, sizes: Mapping[str, int], make: Callable[[str], np.ndarray], stem: str = "model",
    shard: int = SHARD_BYTES,
) -> None:  # fmt: skip
    """Write tensors to `model.safetensors`, or to shards and an index.

    Args:
      sizes: bytes of each tensor.
      make: brings one into memory; a shard's are made together.
      stem: how the names of the files begin.
      shard: bytes of a shard at most, but for a tensor that has more by itself.
    """
    from safetensors.numpy import save_file

    shards: list[list[str]] = [[]]
    room = shard
    for name, size in sizes.items():
        if size > room and shards[-1]:
            shards.append([])
            room = shard
        shards[-1].append(name)
        room -= size
    files = [f"{stem}.safetensors"]
    if len(shards) > 1:
        files = [f"{stem}-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    for file, names in zip(files, shards, strict=True):
        path = folder / file
        path.touch()
        readers = path.stat().st_mode  # those of every new file, and not its owner alone, as safetensors has it
        save_file({name: make(name) for name in names}, path, metadata={"format": "pt"})
        path.chmod(readers)
    if len(shards) > 1:
        where = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": where}
        index_file = folder / f"{stem}.safetensors.index.json"
        index_file.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
