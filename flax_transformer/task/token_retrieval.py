"""Texts compared token by token, to train late interaction: examples of marked queries and passages, and recall.

Axes: B rows, C columns, T positions, D width.
"""

import string
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flax_transformer.data.examples import Arrays
from flax_transformer.data.table import Table
from flax_transformer.data.text.text_column import TextColumns
from flax_transformer.frozen import frozen
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.ops.late_interaction import max_similarity
from flax_transformer.ops.norm import unit
from flax_transformer.task.evaluator import Finished
from flax_transformer.task.late_interaction import PASSAGE, QUERY, QUERY_LENGTH, marked_tokens
from flax_transformer.task.opened import Context
from flax_transformer.task.retrieval import RetrievalEvaluator
from flax_transformer.task.sentence_similarity import TextRows


@frozen
class MarkedColumns:
    """Lay out rows of a query and passages; `labels` [B, C, T] say which tokens are compared.

    Of a query all are, also the mask tokens that fill it up, which nothing attends to; of a passage those that are
    neither padding nor punctuation.
    """

    columns: TextColumns
    skip: tuple[int, ...]
    """Tokens of punctuation."""

    def __call__(self, examples: Sequence[Mapping[str, Any] | None]) -> Arrays:
        """Lay out one batch; a row that is None is all padding."""
        batch = self.columns(examples)
        tokens, lengths = batch["inputs"]["tokens"], batch["inputs"]["lengths"]
        compared = np.arange(tokens.shape[-1]) < lengths[..., None]
        compared[:, 1:] &= ~np.isin(tokens[:, 1:], self.skip)
        lengths[:, 0] = [0 if row is None else row["attended"] for row in examples]
        return {**batch, "labels": compared}


@frozen
class MarkedRows(TextRows):
    """Lay out a query and its passages a row, each after a token that says what it is, as ColBERT reads them."""

    uses: ClassVar[tuple[str, ...]] = ("late-interaction",)

    def __post_init__(self):
        super().__post_init__()
        if self.scored or self.length >> (self.buckets - 1) < QUERY_LENGTH:
            raise ValueError(
                f"queries have {QUERY_LENGTH} tokens, and no scores, got length={self.length}, buckets={self.buckets}, "
                f"scored={self.scored}"
            )

    def learned(self, context: Context, texts: Iterable[str]) -> HubTokenizer:
        """Learn a tokenizer that has the marks."""
        made = self.vocabulary.open(context.folder, texts).with_mask().with_marks(QUERY, PASSAGE)
        return HubTokenizer.of_encoder(made)

    def collated(self, columns: TextColumns, tokenizer: HubTokenizer) -> MarkedColumns:
        """Return what lays out batches."""
        skip = {row[0] for row in tokenizer.encode(list(string.punctuation)) if row}
        return MarkedColumns(columns=columns, skip=tuple(sorted(skip)))

    def items(self, table: Table, tokenizer: HubTokenizer) -> list[dict[str, Any]]:
        """Tokenise rows of texts.

        Raises:
          ValueError: a tokenizer without a mask token or the marks.
        """
        queries, *others = zip(*table["texts"], strict=True)
        ids, attended = marked_tokens(tokenizer, queries, QUERY, QUERY_LENGTH, QUERY_LENGTH)
        columns = [list(ids)]
        for texts in others:
            ids, real = marked_tokens(tokenizer, texts, PASSAGE, self.length, self.length)
            columns.append([row[:count] for row, count in zip(ids, real.sum(axis=1), strict=True)])
        rows = zip(zip(*columns, strict=True), attended.sum(axis=1).tolist(), strict=True)
        return [{"tokens": tokens, "attended": count, "labels": 0.0} for tokens, count in rows]


@frozen
class TokenRetrieval(RetrievalEvaluator):
    """Rank all test passages by late interaction with each query, and all queries with each passage."""

    def scores(self, finished: Finished) -> Float[np.ndarray, "F S"]:
        """Compute `max_similarity` of every query and passage."""
        held, model = finished.opened.held, finished.model
        (queries, asked), passages = _all(model, held.first()), list(_each(model, held.second()))
        score = jax.jit(partial(max_similarity, jnp.asarray(queries), query_mask=jnp.asarray(asked)))
        return np.concatenate([np.asarray(score(vectors, passage_mask=mask))[:, real]
                               for vectors, mask, real in passages], axis=1)  # fmt: skip


def _each(model: Any, batches: Iterable[Arrays]) -> Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    for batch in batches:
        yield np.asarray(_vectors(model, batch["inputs"])), batch["labels"], batch["weights"] > 0


def _all(model: Any, batches: Iterable[Arrays]) -> tuple[np.ndarray, np.ndarray]:
    """Return the vectors of all queries, and which of their tokens count."""
    found = [(vectors[real], mask[real]) for vectors, mask, real in _each(model, batches)]
    vectors, masks = (np.concatenate([each[:, :QUERY_LENGTH] for each in side]) for side in zip(*found, strict=True))
    return vectors, masks


@jax.jit
def _vectors(model: Any, inputs: Any) -> Float[Array, "B T D"]:
    return unit(model.output(model.hidden_states(**inputs)))
