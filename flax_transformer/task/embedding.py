"""Vectors of texts and images; search and zero-shot classification by them.

Axes: B images or texts, C channels, H W height and width, T positions, D width.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from flax_transformer.data.file import load_arrays
from flax_transformer.data.identity import digest
from flax_transformer.data.image.decode import is_image_name
from flax_transformer.hub import Pretrained
from flax_transformer.hub.inputs import Inputs
from flax_transformer.hub.towers import patch_states
from flax_transformer.listing import listed
from flax_transformer.models.head import Head
from flax_transformer.models.token_pool import pool_tokens
from flax_transformer.task.checkpoint import (
    File,
    Refuse,
    image_processor_of,
    positions_of,
    read_several,
    require_use,
    tokenizer_of,
)
from flax_transformer.task.classification import Label
from flax_transformer.task.image_input import batches, read_image
from flax_transformer.task.sentence_embedding import embed_sentences, is_sentence_encoder
from flax_transformer.task.text_batches import encode_texts, padded_batches

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
    require_use(pretrained, "retrieval")
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
    return unit(found.pooler_output if found.text_embeds is None else found.text_embeds)


def choose(pretrained: Pretrained, files: Sequence[File | Any], texts: Sequence[str]) -> list[list[Label]]:
    """Return which of some texts says what is on an image, without having learned them as classes.

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
    images = unit(embed_images(pretrained, files))
    scale = float(np.exp(np.asarray(pretrained.model.log_scale[...], np.float32)))
    logits = scale * images @ said.T
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
    require_use(pretrained, "retrieval", "images")
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    root = Path(folder).expanduser()
    seen = is_image_name(query) and Path(query).is_file()
    asked = unit(embed_images(pretrained, [query])) if seen else embed_texts(pretrained, [query])
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
    model, known = checkpoint_name(pretrained), read_vectors(index)
    if known is not None and known[0] != model:
        raise ValueError(f"{index} has the vectors of another checkpoint; delete it, or name another file by --index")
    kept = {} if known is None else {name: row for name, stamp, row in known[1] if stamps.get(name) == stamp}
    fresh = [name for name in stamps if name not in kept]
    for paths, images in read_several([root / name for name in fresh], partial(read_image, pretrained), refuse):
        found = unit(embed_images(pretrained, images))
        kept |= {path.relative_to(root).as_posix(): row for path, row in zip(paths, found, strict=True)}
    stamps = {name: stamp for name, stamp in stamps.items() if name in kept}
    if not kept:
        raise ValueError(f"{root} must have images that can be read, got none")
    vectors = np.stack([kept[name] for name in stamps])
    if {*stamps} & {*fresh} or known is None or len(known[1]) != len(stamps):
        write_vectors(index, model, stamps, vectors)
    return list(stamps), vectors


def write_vectors(index: Path, model: str, stamps: Mapping[str, list[int]], vectors: Float[np.ndarray, "N E"]) -> None:
    """Keep vectors by the name of each, with what it takes to tell whether one is still right."""
    said = json.dumps({"model": model, "pictures": list(stamps.items())})
    part = index.with_name(f"{index.name}.part")
    with part.open("wb") as file:
        np.savez(file, said=np.frombuffer(said.encode(), np.uint8), vectors=vectors)
    part.replace(index)


def _is_shown(path: Path) -> bool:
    return is_image_name(path.name) and not any(part.startswith(".") for part in path.parts)


def checkpoint_name(pretrained: Pretrained) -> str:
    """Name a checkpoint by all that its vectors depend on."""
    leaves = (np.atleast_1d(leaf).view(np.uint8) for leaf in jax.tree.leaves(pretrained.model))
    seen = "" if pretrained.processor is None else json.dumps(pretrained.processor.config, sort_keys=True, default=str)
    return digest(pretrained.config.text, seen, *leaves)


def read_vectors(index: Path) -> tuple[str, list[tuple[str, list[int], np.ndarray]]] | None:
    """Read what is kept; None where there is nothing.

    Raises:
      ValueError: a file that is no such index.
    """
    if not index.is_file():
        return None
    try:
        arrays = load_arrays(index)
        said, vectors = json.loads(arrays["said"].tobytes()), arrays["vectors"]
        rows = [(name, stamp, vector) for (name, stamp), vector in zip(said["pictures"], vectors, strict=True)]
        return said["model"], rows
    except Exception as error:
        raise ValueError(f"{index} must be a file of vectors that a search wrote: {error}") from error


def unit(x: Float[jax.Array | np.ndarray, "N E"]) -> Float[np.ndarray, "N E"]:
    """Make each vector one of length 1."""
    x = np.asarray(x, np.float32)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


ROWS = 32
"""Texts that are read together."""


Pooling = Literal["mean", "first", "last"]


def embed(
    pretrained: Pretrained,
    texts: Sequence[str],
    pooling: Pooling | None = None,
    *,
    normalise: bool = False,
    prompt: str | None = None,
) -> Float[np.ndarray, "B D"]:
    """Return a vector for each text: its last hidden states, pooled over tokens; of an encoder-decoder the encoder's.

    A text longer than the model has positions, or than a sentence encoder reads, is cut.

    Args:
      pooling: the mean, the state of the first token, or of the last, special tokens included; the mean by default. A
        model that matches images and texts has vectors of its own, of length 1, and a sentence encoder has vectors as
        its folder says; neither takes a pooling.
      normalise: whether to divide each vector by its length.
      prompt: put before each text. Of a sentence encoder the name of one of its prompts, or a text; its default, where
        it has one, if None.

    Raises:
      ValueError: a checkpoint that reads no text or has no tokenizer, an empty text, or pooling where there is none.
    """
    tokenizer_of(pretrained, *texts)  # refuses what reads no text
    if pretrained.architecture.sides:
        name, sides = pretrained.config["architectures"][0], pretrained.architecture.sides
        raise ValueError(
            f"a {name} embeds texts as questions or as passages, by encoder_side(…, side) with side "
            f"{' or '.join(sides)}; it was given texts without a side"
        )
    if not all(text.strip() for text in texts):
        raise ValueError("a text to embed must not be empty")
    if {"retrieval", "sentence-similarity"} & {*pretrained.architecture.uses} and pooling is not None:
        name = pretrained.config["architectures"][0]
        raise ValueError(f"a {name} has vectors of texts of its own, nothing is pooled; got pooling={pooling}")
    if is_sentence_encoder(pretrained):
        vectors = embed_sentences(pretrained, texts, prompt)
        return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True) if normalise else vectors
    texts = [(prompt or "") + text for text in texts]
    if "retrieval" in pretrained.architecture.uses:
        return np.concatenate([embed_texts(pretrained, texts[i : i + ROWS]) for i in range(0, len(texts), ROWS)])
    vectors = _pooled_states(pretrained, texts, pooling or "mean")
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True) if normalise else vectors


def _pooled_states(pretrained: Pretrained, texts: Sequence[str], pooling: Pooling) -> Float[np.ndarray, "B D"]:
    """Pool the last hidden states of each text."""
    vectors: dict[int, np.ndarray] = {}
    for numbers, inputs in padded_batches(pretrained, encode_texts(pretrained, texts)):
        states, real = _states(pretrained, inputs), np.asarray(inputs["attention_mask"]) > 0
        found = np.asarray(pool_tokens(pooling, jnp.asarray(states), jnp.asarray(real)))
        vectors |= dict(zip(numbers.tolist(), found, strict=True))
    return np.stack([vectors[number] for number in range(len(texts))])


def _states(pretrained: Pretrained, inputs: Any) -> Float[np.ndarray, "B T D"]:
    """Compute the last hidden states of what is read."""
    if "decoder_input_ids" in pretrained.architecture.inputs.takes:
        start = np.full((len(inputs["input_ids"]), 1), pretrained.config.integer("decoder_start_token_id", 0))
        output = pretrained(**inputs, decoder_input_ids=start)
        return np.asarray(output.encoder_last_hidden_state.astype(np.float32))
    output = pretrained(**inputs, output_hidden_states=True)
    if output.last_hidden_state is None and output.hidden_states is None:
        raise ValueError(f"a {pretrained.config['architectures'][0]} gives no hidden states of a text to pool")
    states = output.hidden_states[-1] if output.last_hidden_state is None else output.last_hidden_state
    return np.asarray(states.astype(np.float32))


def embed_images(pretrained: Pretrained, files: Sequence[File | Any]) -> Float[np.ndarray, "B D"]:
    """Return a vector for each image: what the checkpoint's pooler or classifier makes of it, before any class.

    Raises:
      ValueError: a checkpoint that reads no images or has no image processor, or a file that is no image.
    """
    if "images" not in pretrained.architecture.inputs.reads:
        name = pretrained.config["architectures"][0]
        raise ValueError(f"a {name} reads {' and '.join(pretrained.architecture.inputs.reads)}, it was given images")
    image_processor_of(pretrained)
    if not files:
        return np.zeros((0, 0), np.float32)
    found = [np.asarray(_vectors(pretrained, inputs)) for inputs in batches(pretrained, files)]
    return np.concatenate(found).astype(np.float32)


@jax.jit
def _vectors(pretrained: Pretrained, inputs: dict[str, jax.Array]) -> Float[jax.Array, "B D"]:
    head, pixels = getattr(pretrained.model, "head", None), inputs.get("pixel_values")
    if isinstance(head, Head) and "spatial_shapes" in inputs:
        return head.pool(patch_states(pretrained.model, Inputs(**inputs), None))
    if isinstance(head, Head) and pixels is not None:
        vectors = head.pool(pretrained.model.hidden_states(jnp.moveaxis(pixels, 1, -1)))
        return vectors if vectors.ndim == 2 else vectors.mean(axis=1)
    output = pretrained(**inputs)
    if output.image_embeds is not None:
        return output.image_embeds
    if output.pooler_output is not None:
        return output.pooler_output.reshape(len(output.pooler_output), -1)
    return output.last_hidden_state.mean(axis=1)
