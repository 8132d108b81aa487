"""Texts as vectors of their tokens, as ColBERT has them, and how well passages answer a query by these.

Axes: Q N texts, T S positions, D width.
"""

import string
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.hub import Pretrained
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.ops.late_interaction import max_similarity
from flax_transformer.task.checkpoint import read_length, require_use, tokenizer_of

QUERY, PASSAGE = "[unused0]", "[unused1]"
"""Tokens after the first that say what a text is."""
QUERY_LENGTH = 32
"""Tokens of a query; of shorter ones the rest are mask tokens, which nothing attends to."""
_MULTIPLE = 32
_ROWS = 32


def query_vectors(pretrained: Pretrained, queries: Sequence[str]) -> Float[np.ndarray, "Q T D"]:
    """Return a vector of length 1 for each of the `QUERY_LENGTH` tokens of queries; longer ones are cut.

    Raises:
      ValueError: a checkpoint of another kind, a tokenizer without mask, or an empty query.
    """
    tokenizer = _tokenizer(pretrained, queries)
    ids, mask = marked_tokens(tokenizer, queries, QUERY, QUERY_LENGTH, QUERY_LENGTH)
    return np.asarray(_vectors(pretrained, ids, mask.astype(np.int32)))


def passage_vectors(
    pretrained: Pretrained, texts: Sequence[str]
) -> tuple[Float[np.ndarray, "N S D"], Bool[np.ndarray, "N S"]]:
    """Return a vector of length 1 for each token of passages, and which count: not padding, nor punctuation.

    Passages longer than the positions are cut.

    Raises:
      ValueError: as `query_vectors`.
    """
    tokenizer = _tokenizer(pretrained, texts)
    room = read_length(pretrained)
    ids, mask = marked_tokens(tokenizer, texts, PASSAGE, room, None)
    pieces = tokenizer.encode(list(string.punctuation))
    left_out = [row[0] for row in pieces if row]
    return np.asarray(_vectors(pretrained, ids, mask.astype(np.int32))), mask & ~np.isin(ids, left_out)


def token_relevance(pretrained: Pretrained, query: str, texts: Sequence[str]) -> Float[np.ndarray, "N"]:
    """Score how well each text answers a query, by `max_similarity`.

    Raises:
      ValueError: as `query_vectors`.
    """
    asked = query_vectors(pretrained, [query])
    order = np.argsort([len(text) for text in texts], kind="stable")
    scores = np.zeros(len(texts), np.float32)
    for first in range(0, len(texts), _ROWS):
        chosen = order[first : first + _ROWS]
        rows = [texts[number] for number in chosen]
        rows += [rows[-1]] * (_ROWS - len(rows))
        vectors, mask = passage_vectors(pretrained, rows)
        scores[chosen] = np.asarray(_compared(asked, vectors, mask))[0, : len(chosen)]
    return scores


def _tokenizer(pretrained: Pretrained, texts: Sequence[str]) -> HubTokenizer:
    require_use(pretrained, "late-interaction")
    if not texts or not all(text.strip() for text in texts):
        raise ValueError("texts to compare must be there and not empty")
    return tokenizer_of(pretrained, *texts)


def marked_tokens(
    tokenizer: HubTokenizer, texts: Sequence[str], mark: str, room: int | None, width: int | None
) -> tuple[Int[np.ndarray, "N S"], Bool[np.ndarray, "N S"]]:
    """Tokenise texts, with a mark after the first token: ids, and which are the text's.

    Args:
      room: most tokens of a text; longer ones are cut.
      width: how many each has; a multiple of 32 with room for all by default. What a query lacks are mask tokens.

    Raises:
      ValueError: a tokenizer without the mark, or without the mask that fills up queries.
    """
    if mark == QUERY and tokenizer.mask is None:
        raise ValueError("queries are filled up with a mask token, the checkpoint's tokenizer has none")
    marker = tokenizer.engine.token_to_id(mark)
    if marker is None:
        raise ValueError(f"texts are marked with {mark}, the checkpoint's tokenizer does not know it")
    inputs = tokenizer(list(texts), max_length=None if room is None else room - 1, truncate=room is not None)
    ids, mask = inputs["input_ids"], inputs["attention_mask"] > 0
    if width is None:
        width = -(-(ids.shape[1] + 1) // _MULTIPLE) * _MULTIPLE
        width = width if room is None else min(width, room)
    filled = tokenizer.mask if mark == QUERY else tokenizer.pad or 0
    marked = np.full((len(ids), width), filled, np.int32)
    marked[:, 0], marked[:, 1], marked[:, 2 : ids.shape[1] + 1] = ids[:, 0], marker, ids[:, 1:]
    real = np.zeros(marked.shape, bool)
    real[:, :2], real[:, 2 : ids.shape[1] + 1] = True, mask[:, 1:]
    return np.where(real, marked, filled), real


@jax.jit
def _vectors(pretrained: Any, ids: Int[Array, "N S"], mask: Int[Array, "N S"]) -> Float[Array, "N S D"]:
    vectors = pretrained(input_ids=ids, attention_mask=mask).logits.astype(jnp.float32)
    return vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


_compared = jax.jit(lambda queries, passages, mask: max_similarity(queries, passages, passage_mask=mask))
