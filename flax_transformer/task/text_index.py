"""An index of passages: what a checkpoint makes of each, searched by vectors, by words or by both.

Axes: N passages, Q queries, D width.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from jaxtyping import Float
from qwix import QArray

from flax_transformer.atomic import write_file
from flax_transformer.data.text.passage import Document, Passage, PassageConfig, split_passages
from flax_transformer.frozen import frozen
from flax_transformer.hub import Pretrained
from flax_transformer.hub.registry import find_architecture
from flax_transformer.ops.nearest import nearest, round_vectors
from flax_transformer.task.checkpoint import read_length, tokenizer_of
from flax_transformer.task.embedding import Pooling, checkpoint_name, embed
from flax_transformer.task.lexical import Lexical
from flax_transformer.task.passage_retrieval import encoder_side
from flax_transformer.task.sentence_embedding import PASSAGE, QUERY, prompt_of

SAID, PASSAGES, VECTORS = "index.json", "passages.jsonl", "vectors.safetensors"
"""Files of an index; the first is written last, and without it there is no index."""

By = Literal["vectors", "words", "both"]


@frozen
class TextIndexConfig:
    """How documents become an index."""

    passages: PassageConfig = PassageConfig()
    """How they are cut."""
    kind: Literal["float32", "int8"] = "float32"
    """Numbers of the vectors that are kept."""
    pooling: Pooling | None = None
    """As `task.embedding.embed` has it."""


@dataclass(frozen=True)
class Found:
    """A passage that was found."""

    passage: Passage
    number: int
    """Of the passage in the index."""
    score: float
    """Cosine by vectors, or the inner product where the checkpoint's are compared so, BM25 by words, and by both a mean
    of the two, each divided by its highest."""


@dataclass(frozen=True, eq=False)
class TextIndex:
    """Passages, and a vector for each: of length 1, but where a checkpoint's are compared by inner products."""

    passages: tuple[Passage, ...]
    vectors: Float[jax.Array, "N D"] | QArray
    config: TextIndexConfig
    model: str
    """Digest of the checkpoint that made the vectors."""
    name: str
    """What the checkpoint was called: a folder or a hub id."""
    architecture: str = ""
    """Class of what made the vectors."""

    def __repr__(self) -> str:
        count, width = self.vectors.shape
        return f"TextIndex of {count:,} passages, {width} numbers of {self.config.kind} each, by {self.name}"

    @cached_property
    def lexical(self) -> Lexical:
        """The passages' words."""
        return Lexical([each.text for each in self.passages])

    def save(self, folder: str | Path) -> None:
        """Write a folder; in the place of an index, which is gone until the new one is whole.

        Raises:
          ValueError: a folder that holds something else.
        """
        folder = Path(folder)
        if folder.exists() and not (folder / SAID).is_file() and any(folder.iterdir()):
            raise ValueError(f"an index is written to a folder that is new, empty or an index, got {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SAID).unlink(missing_ok=True)
        rows = (json.dumps(asdict(each), ensure_ascii=False) for each in self.passages)
        write_file(folder / PASSAGES, "".join(f"{row}\n" for row in rows))
        few = isinstance(self.vectors, QArray)
        arrays = {"qvalue": self.vectors.qvalue, "scale": self.vectors.scale} if few else {"vectors": self.vectors}
        write_file(folder / VECTORS, safetensors.numpy.save({name: np.asarray(each) for name, each in arrays.items()}))
        said = {"model": self.model, "name": self.name, "passages": len(self.passages), "config": asdict(self.config)}
        said["architecture"] = self.architecture
        write_file(folder / SAID, json.dumps(said, indent=2, ensure_ascii=False) + "\n")


def load_index(folder: str | Path) -> TextIndex:
    """Load an index.

    Raises:
      FileNotFoundError: no such folder.
      ValueError: a folder that is no index, or one whose files do not belong together.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no index {folder}")
    if not (folder / SAID).is_file():
        raise ValueError(f"{folder} is no index, or one that was not written to its end: it has no {SAID}")
    try:
        said = json.loads((folder / SAID).read_text(encoding="utf-8"))
        lines = (folder / PASSAGES).read_text(encoding="utf-8").split("\n")
        passages = tuple(Passage(**json.loads(line)) for line in lines if line)
        arrays = safetensors.numpy.load((folder / VECTORS).read_bytes())
        options = said["config"]
        config = TextIndexConfig(**{**options, "passages": PassageConfig(**options["passages"])})
        vectors = _vectors(arrays)
        model, name, architecture = said["model"], said["name"], said.get("architecture", "")
    except Exception as error:
        raise ValueError(f"{folder} must be an index that was written to its end: {error}") from error
    if not len(passages) == vectors.shape[0] == said["passages"]:
        raise ValueError(f"{folder} must have a vector for each passage, got {vectors.shape[0]} for {len(passages)}")
    return TextIndex(passages, vectors, config, model, name, architecture)


def _vectors(arrays: dict[str, np.ndarray]) -> Any:
    if "vectors" in arrays:
        return jnp.asarray(arrays["vectors"])
    return QArray(jnp.asarray(arrays["qvalue"]), jnp.asarray(arrays["scale"]))


def index_documents(
    pretrained: Pretrained,
    documents: Iterable[Document],
    config: TextIndexConfig = TextIndexConfig(),
    *,
    name: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> TextIndex:
    """Cut documents into passages and embed each.

    Args:
      pretrained: what `task.embedding.embed` takes.
      name: what the checkpoint is called.
      progress: `progress(passages done, all)` after every block of them.

    Raises:
      ValueError: no documents, passages longer than the model has positions, or what `embed` refuses.
    """
    if (room := passage_room(pretrained)) is not None and config.passages.tokens > room:
        raise ValueError(
            f"a passage must fit into what the model reads, got tokens={config.passages.tokens}, it reads {room} "
            "beside special ones"
        )
    passages = passages_of(pretrained, documents, config.passages)
    return embed_passages(pretrained, passages, config, name=name, progress=progress)


def embed_passages(
    pretrained: Pretrained,
    passages: tuple[Passage, ...],
    config: TextIndexConfig = TextIndexConfig(),
    *,
    name: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> TextIndex:
    """Make an index of passages that are cut already; those longer than the model reads lose their ends.

    Raises:
      ValueError: no passages, or what `embed` refuses.
    """
    if not passages:
        raise ValueError("an index must have documents, got none")
    blocks = []
    for first in range(0, len(passages), _BLOCK):
        texts = [each.text for each in passages[first : first + _BLOCK]]
        blocks.append(_embedded(pretrained, texts, config, PASSAGE).astype(np.float32))
        if progress is not None:
            progress(first + len(texts), len(passages))
    vectors = jnp.asarray(np.concatenate(blocks))
    kept = vectors if config.kind == "float32" else jax.jit(round_vectors)(vectors)
    return TextIndex(passages, kept, config, checkpoint_name(pretrained), name, _class_of(pretrained))


def words_index(passages: tuple[Passage, ...], config: PassageConfig = PassageConfig()) -> TextIndex:
    """Make an index of passages that are cut already, to be searched by words alone."""
    if not passages:
        raise ValueError("an index must have documents, got none")
    return TextIndex(passages, jnp.zeros((len(passages), 0)), TextIndexConfig(passages=config), "", "")


def _class_of(pretrained: Pretrained) -> str:
    return pretrained.config["architectures"][0]


def _embedded(
    pretrained: Pretrained, texts: Sequence[str], config: TextIndexConfig, names: tuple[str, ...]
) -> Float[np.ndarray, "B D"]:
    """Embed texts, after the first prompt of these names that a sentence encoder has, by the encoder of their side;
    vectors have length 1, but those that are compared by their inner products."""
    side = encoder_side(pretrained, "question" if names == QUERY else "passage")
    return embed(side, texts, config.pooling, normalise=not side.architecture.dot, prompt=prompt_of(side, names))


_BLOCK = 4_096
"""Passages embedded at a time; within them `embed` puts those of like length together."""


def passage_room(pretrained: Pretrained) -> int | None:
    """Return how many tokens of a text a checkpoint reads beside special ones; None where there is no limit."""
    added = tokenizer_of(pretrained).engine.num_special_tokens_to_add(False)
    return None if (room := read_length(pretrained)) is None else room - added


def usual_passages(pretrained: Pretrained, tokens: int | None = None, overlap: int | None = None) -> PassageConfig:
    """Return how documents are cut for a checkpoint, where it is not said: 128 tokens, or as many as it reads, of which
    neighbours share a quarter.
    """
    tokens = min(PassageConfig().tokens, passage_room(pretrained) or math.inf) if tokens is None else tokens
    return PassageConfig(tokens=int(tokens), overlap=int(tokens) // 4 if overlap is None else overlap)


def passages_of(
    pretrained: Pretrained, documents: Iterable[Document], config: PassageConfig = PassageConfig()
) -> tuple[Passage, ...]:
    """Cut documents by the tokens of a checkpoint.

    Raises:
      ValueError: a checkpoint without a tokenizer.
    """
    tokenizer, passages = tokenizer_of(pretrained), []
    for document in documents:
        (offsets,) = tokenizer.token_offsets([document.text])
        passages += split_passages(document, offsets, config)
    return tuple(passages)


def search_index(
    index: TextIndex,
    pretrained: Pretrained | None,
    queries: Sequence[str],
    top: int = 10,
    by: By = "both",
    weight: float = 0.5,
) -> list[list[Found]]:
    """Find the passages that answer queries.

    Args:
      pretrained: the checkpoint that the index was made by; None for a search by words.
      top: passages of each query at most; by words alone, those that have a word of it.
      by: `vectors`, their cosine; `words`, BM25; `both`, what `fuse` makes of the first `DEEP` of each.
      weight: of vectors in `both`, from 0 to 1; words have the rest.

    Raises:
      ImportError: without `bm25s`, where words are searched.
      ValueError: another checkpoint than the index's, an empty query, one of unknown tokens alone, or top below 1.
    """
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    if not 0 <= weight <= 1:
        raise ValueError(f"weight must be between 0 and 1, got {weight}")
    if not queries or not all(query.strip() for query in queries):
        raise ValueError("a query must not be empty")
    if by == "words":
        return [_found(index, ranked, top) for ranked in _by_words(index, queries, top)]
    if not index.model:
        raise ValueError(f"the index has no vectors, it is searched by words, got by={by}")
    if pretrained is None or not _asks(pretrained, index):
        raise ValueError(f"the index has the vectors of {index.name or 'a checkpoint'}, it is searched by another")
    deep = top if by == "vectors" else max(top, DEEP)
    vectors = _by_vectors(index, pretrained, queries, deep)
    if by == "vectors":
        return [_found(index, ranked, top) for ranked in vectors]
    words = _by_words(index, queries, deep)
    weights = weight, 1 - weight
    rows = zip(vectors, words, strict=True)
    if pretrained.architecture.dot:  # there is no lowest inner product but that of what is found
        return [_found(index, fuse(pair, (min(s for _, s in pair[0]), 0.0), weights), top) for pair in rows]
    return [_found(index, fuse(pair, _LOWEST, weights), top) for pair in rows]


def _asks(pretrained: Pretrained, index: TextIndex) -> bool:
    """Return whether a checkpoint embeds the queries of an index: the one that made it, or where that embeds passages
    alone, one of its kind that embeds questions."""
    if index.architecture and pretrained.architecture.asks == index.architecture:
        return pretrained.model.cfg.head.width == index.vectors.shape[1]
    return checkpoint_name(pretrained) == index.model and not _asked_by_another(index.architecture)


def _asked_by_another(architecture: str) -> bool:
    """Return whether vectors of a class are searched by those of another."""
    if not architecture:
        return False
    family, _ = find_architecture(architecture)
    return any(each.asks == architecture for each in family.architectures.values())


DEEP = 100
"""Passages of each kind of search whose scores are fused."""
_LOWEST = (-1.0, 0.0)
"""The lowest cosine, and the lowest BM25."""

Ranked = list[tuple[int, float]]
"""Numbers of passages and their scores, the best first."""


def fuse(rankings: Sequence[Ranked], lowest: Sequence[float], weights: Sequence[float]) -> Ranked:
    """Fuse rankings by a weighted sum of scores, each divided by the highest of its ranking, both counted from the
    lowest there can be (Bruch et al. 2022, https://arxiv.org/abs/2210.11934). What a ranking lacks has nothing of it.

    >>> fuse([[(7, 0.9), (3, 0.8)], [(3, 12.0), (5, 3.0)]], (-1.0, 0.0), (0.5, 0.5))[0][0]
    3
    """
    scores: dict[int, float] = {}
    for ranking, low, weight in zip(rankings, lowest, weights, strict=True):
        highest = max((score for _, score in ranking), default=low)
        for number, score in ranking:
            share = (score - low) / (highest - low) if highest > low else 0.0
            scores[number] = scores.get(number, 0.0) + weight * share
    return sorted(scores.items(), key=lambda each: (-each[1], each[0]))


def _found(index: TextIndex, ranked: Ranked, top: int) -> list[Found]:
    return [Found(index.passages[number], number, score) for number, score in ranked[:top]]


def _by_vectors(index: TextIndex, pretrained: Pretrained, queries: Sequence[str], top: int) -> list[Ranked]:
    tokenizer = tokenizer_of(pretrained)
    for query, ids in zip(queries, tokenizer.encode(list(queries)), strict=True):
        if tokenizer.unk is not None and {*ids} <= {tokenizer.unk}:
            raise ValueError(f"a query must have a token that the checkpoint's tokenizer knows, got {query!r:.80}")
    asked = jnp.asarray(_embedded(pretrained, queries, index.config, QUERY))
    top, found = min(top, len(index.passages)), []
    for first in range(0, len(queries), _QUERIES):
        scores, places = (np.asarray(each) for each in nearest(index.vectors, asked[first : first + _QUERIES], top))
        found += [
            list(zip(row.tolist(), values.tolist(), strict=True)) for row, values in zip(places, scores, strict=True)
        ]
    return found


_QUERIES = 64


def _by_words(index: TextIndex, queries: Sequence[str], top: int) -> list[Ranked]:
    found = []
    for query in queries:
        scores = index.lexical.scores(query)
        best = np.argsort(-scores, kind="stable")[:top]
        found.append([(int(number), float(scores[number])) for number in best if scores[number] > 0])
    return found
