"""Documents and their summaries as tokens, in batches whose width goes by the document alone.

Axes: B rows, S source positions, T target positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Int

from flax_transformer.data.bucket import Indices
from flax_transformer.data.examples import Arrays
from flax_transformer.data.table import Table
from flax_transformer.data.text.batch import Tokenized, ragged
from flax_transformer.data.text.padded_batch import pad_arrays, teacher_forcing_batch


@dataclass(frozen=True, eq=False)
class SummaryTokens(Tokenized):
    """Token pairs of which the targets are short: every batch has T of them a row, and as wide sources as it needs."""

    width: int = 32
    """T, end mark included."""

    @property
    def lengths(self) -> Int[np.ndarray, "n 2"]:
        """Count the source tokens of each pair, twice: what decides the width of its batch."""
        return np.stack([self.source.lengths] * 2, axis=1)

    def lay_out(self, indices: Indices, width: int) -> Arrays:
        """Lay pairs out as one batch, S = `width`; index -1 makes an empty row. See `teacher_forcing_batch`."""
        sides = []
        for rows, room in ((self.source, width), (self.target, self.width)):
            marked = [None if index < 0 else [*rows[index].tolist(), self.eos] for index in indices.tolist()]
            arrays = [None if row is None else np.array(row, np.int32) for row in marked]
            sides += pad_arrays("tokens", arrays, room, self.pad)
        return teacher_forcing_batch(*sides, start=self.bos, pad=self.pad)


def tokenize_summaries(table: Table, tokenizer: Any, *, source: int, width: int, prefix: str = "") -> SummaryTokens:
    """Encode the documents of a table, each behind its query, and its summaries; what is longer is cut at the end.

    Args:
      table: with columns `document`, `query` and `summary`.
      source: tokens of a source at most, end mark included.
      width: of a target.
      prefix: what every source begins with.
    """
    texts = [prefix + before_document(q, d) for q, d in zip(table["query"], table["document"], strict=True)]
    writer = getattr(tokenizer, "target", None) or tokenizer
    sources = [ids[: source - 1] for ids in tokenizer.encode(texts)]
    targets = [ids[: width - 1] for ids in writer.encode(list(table["summary"]))]
    marks = {"pad": tokenizer.pad, "bos": tokenizer.bos, "eos": tokenizer.eos}
    return SummaryTokens(ragged(sources), ragged(targets), tokenizer.fingerprint(), **marks, width=width)


def before_document(query: str, document: str) -> str:
    """Put a query, if there is one, before a document.

    >>> before_document("Who pays?", "Ann pays."), before_document("", "Ann pays.")
    ('Who pays? Ann pays.', 'Ann pays.')
    """
    return f"{query} {document}" if query.strip() else document


def cut_share(table: Table, tokenizer: Any, source: int) -> float:
    """Return the share of documents that have more tokens than a source may have."""
    lengths = np.array([len(ids) for ids in tokenizer.encode(list(table["document"]))])
    return float(np.mean(lengths > source - 1))


def read_plainly(tokenizer: Any, *, lowercase: bool) -> Any:
    """Return a tokenizer of bytes that reads a word alike wherever it stands: any space as one, before every text too.

    Args:
      lowercase: whether capital letters are read, and so written, as small ones.
    """
    import tokenizers
    from tokenizers import normalizers, pre_tokenizers

    inner = tokenizers.Tokenizer.from_str(tokenizer.json())
    spaces = normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
    inner.normalizer = normalizers.Sequence([spaces, normalizers.Lowercase()] if lowercase else [spaces])
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return replace(tokenizer, inner=inner)


def plain_texts(texts: Sequence[str], *, lowercase: bool) -> list[str]:
    """Return texts as such a tokenizer reads them, to learn its merges from."""
    found = [" " + " ".join(text.split()) for text in texts]
    return [text.lower() for text in found] if lowercase else found
