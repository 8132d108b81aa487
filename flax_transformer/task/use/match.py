"""Images by what is said of them: which of some texts tells an image, which images of a folder a text tells.

Axes: B texts, N images, E width of the common space, T tokens.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from flax_transformer.data.identity import digest
from flax_transformer.data.image.decode import is_image_name
from flax_transformer.hub import Pretrained
from flax_transformer.listing import listed
from flax_transformer.task.use.classify import Label
from flax_transformer.task.use.image import embed_images, read_image
from flax_transformer.task.use.require import positions_of, require_use, tokenizer_of
from flax_transformer.task.use.several import File, Refuse, read_several

INDEX = ".embeddings.npz"
"""File that keeps the vectors of a folder's images."""


@dataclass(frozen=True)
class Hit:
    """An image that was found."""

    file: Path
    score: float
    """Cosine, from -1 to 1."""


def embed_texts(pretrained: Pretrained, texts: Sequence[str]) -> Float[np.ndarray, "B E"]:
    """Return a vector of length 1 for each text; one longer than the model has positions is cut.

    Raises:
      ValueError: a checkpoint of another kind or without a tokenizer, or no text.
    """
    require_use(pretrained, "match")
    if not texts or not all(text.strip() for text in texts):
        raise ValueError("texts to match must be there and not empty")
    config = pretrained.model.cfg
    room = positions_of(getattr(config, "text", config))
    padded = pretrained.architecture.inputs.padded
    inputs = tokenizer_of(pretrained, *texts)(
        list(texts), max_length=room, truncate=True, padding="max_length" if padded else "longest"
    )
    given = {"input_ids": inputs["input_ids"]} | ({} if padded else {"attention_mask": inputs["attention_mask"]})
    found = pretrained(**given)
    return _unit(found.pooler_output if found.text_embeds is None else found.text_embeds)


def choose(pretrained: Pretrained, files: Sequence[File | Any], texts: Sequence[str]) -> list[list[Label]]:
    """Tell which of some texts says what is on an image, without having learned them as classes.

    Returns:
      For each file all texts, the most probable first.

    Raises:
      ValueError: as `embed_texts` and `embed_images`, or one text alone.
    """
    if len(set(texts)) < 2:
        raise ValueError(f"to choose takes at least two texts, got {listed(list(map(repr, texts)))}")
    said = embed_texts(pretrained, texts)
    if not files:
        return []
    pictures = _unit(embed_images(pretrained, files))
    scale = float(np.exp(np.asarray(pretrained.model.log_scale[...], np.float32)))
    logits = scale * pictures @ said.T
    probabilities = np.exp(logits - logits.max(1, keepdims=True))
    probabilities /= probabilities.sum(1, keepdims=True)
    return [[Label(texts[i], float(row[i])) for i in np.argsort(-row, kind="stable")] for row in probabilities]


def search(
    pretrained: Pretrained,
    query: str,
    folder: str | os.PathLike,
    *,
    top: int = 10,
    index: Path | None = None,
    refuse: Refuse | None = None,
) -> list[Hit]:
    """Find the images of a folder, and of those in it, that a text tells, or that are most like an image.

    Vectors are kept in a file and computed once; those of images that are new or have changed are computed anew.

    Args:
      query: a text, or an image's file.
      top: images at most; the best are given, exactly.
      index: the file; `.embeddings.npz` in the folder by default.
      refuse: is told of images that cannot be read, which are left out; without it the first ends the search.

    Raises:
      FileNotFoundError: no such folder.
      ValueError: a folder without images, vectors of another checkpoint, or what `embed_texts` refuses.
    """
    require_use(pretrained, "match", "images")
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    root = Path(folder).expanduser()
    seen = is_image_name(query) and Path(query).is_file()
    asked = _unit(embed_images(pretrained, [query])) if seen else embed_texts(pretrained, [query])
    names, vectors = indexed(pretrained, root, root / INDEX if index is None else index, refuse)
    scores = vectors @ asked[0]
    best = np.argsort(-scores, kind="stable")[:top]
    return [Hit(root / names[i], float(scores[i])) for i in best]


def indexed(
    pretrained: Pretrained, root: Path, index: Path, refuse: Refuse | None = None
) -> tuple[list[str], Float[np.ndarray, "N E"]]:
    """Return the images below a folder and their vectors, of length 1, and keep them in a file; `refuse` as there."""
    if not root.is_dir():
        raise FileNotFoundError(f"{root} must be a folder of images, there is none")
    files = sorted(path for path in root.rglob("*") if path.is_file() and _is_shown(path.relative_to(root)))
    if not files:
        raise ValueError(f"{root} must have images, got none")
    stamps = {path.relative_to(root).as_posix(): [path.stat().st_size, path.stat().st_mtime_ns] for path in files}
    model, known = _name(pretrained), _read(index)
    if known is not None and known[0] != model:
        raise ValueError(f"{index} has the vectors of another checkpoint; delete it, or name another file by --index")
    kept = {} if known is None else {name: row for name, stamp, row in known[1] if stamps.get(name) == stamp}
    fresh = [name for name in stamps if name not in kept]
    for paths, pictures in read_several([root / name for name in fresh], partial(read_image, pretrained), refuse):
        found = _unit(embed_images(pretrained, pictures))
        kept |= {path.relative_to(root).as_posix(): row for path, row in zip(paths, found, strict=True)}
    stamps = {name: stamp for name, stamp in stamps.items() if name in kept}
    if not kept:
        raise ValueError(f"{root} must have images that can be read, got none")
    vectors = np.stack([kept[name] for name in stamps])
    if {*stamps} & {*fresh} or known is None or len(known[1]) != len(stamps):
        said = json.dumps({"model": model, "pictures": list(stamps.items())})
        part = index.with_name(f"{index.name}.part")
        with part.open("wb") as file:
            np.savez(file, said=np.frombuffer(said.encode(), np.uint8), vectors=vectors)
        part.replace(index)
    return list(stamps), vectors


def _is_shown(path: Path) -> bool:
    return is_image_name(path.name) and not any(part.startswith(".") for part in path.parts)


def _name(pretrained: Pretrained) -> str:
    """Name a checkpoint by all that its vectors depend on."""
    leaves = (np.atleast_1d(leaf).view(np.uint8) for leaf in jax.tree.leaves(pretrained.model))
    seen = "" if pretrained.processor is None else json.dumps(pretrained.processor.config, sort_keys=True, default=str)
    return digest(pretrained.config.text, seen, *leaves)


def _read(index: Path) -> tuple[str, list[tuple[str, list[int], np.ndarray]]] | None:
    """Read what is kept; None where there is nothing.

    Raises:
      ValueError: a file that is no such index.
    """
    if not index.is_file():
        return None
    try:
        with np.load(index, allow_pickle=False) as arrays:
            said, vectors = json.loads(arrays["said"].tobytes()), arrays["vectors"]
        rows = [(name, stamp, vector) for (name, stamp), vector in zip(said["pictures"], vectors, strict=True)]
        return said["model"], rows
    except Exception as error:
        raise ValueError(f"{index} must be a file of vectors that a search wrote: {error}") from error


def _unit(x: Float[np.ndarray, "N E"]) -> Float[np.ndarray, "N E"]:
    x = np.asarray(x, np.float32)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
