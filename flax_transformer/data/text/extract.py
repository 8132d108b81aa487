"""Summaries of a document's own sentences: which ones, by rule, by scores, or by knowing the right summary.

Axes: n sentences, U different words.
"""

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy.sparse
from jaxtyping import Float, Int

DAMPING = 0.85
"""How often a walk over similar sentences goes on to a similar one, and not to any (Brin & Page 1998)."""


@lru_cache(maxsize=1 << 17)
def words_of(text: str) -> tuple[str, ...]:
    """Return the words of a text as ROUGE counts them: runs of letters and digits, in lower case.

    >>> words_of("It's 5 p.m.")
    ('it', 's', '5', 'p', 'm')
    """
    return tuple(re.findall(r"[a-z0-9]+", text.lower()))


def ngrams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """Return the runs of n words."""
    return list(zip(*(words[i:] for i in range(n)), strict=False))


def lead(sentences: Sequence[str], count: int) -> list[int]:
    """Choose the first sentences."""
    return list(range(min(count, len(sentences))))


def text_rank(sentences: Sequence[str], count: int) -> list[int]:
    """Choose the sentences that a walk over similar ones visits most often, in order (Mihalcea & Tarau 2004).

    Two are as similar as they have words in common, over the logarithms of their numbers of words.
    """
    ranks = text_rank_scores(sentences)
    return sorted(np.argsort(-ranks, kind="stable")[:count].tolist())


def text_rank_scores(sentences: Sequence[str]) -> Float[np.ndarray, " n"]:
    """Compute how often the walk of `text_rank` visits each sentence, by power iteration; the sum is 1."""
    n, counts = len(sentences), _count_matrix([words_of(each) for each in sentences])
    there = (counts > 0).astype(np.float64)
    common = np.asarray((there @ there.T).todense())
    logs = np.log(np.maximum(np.asarray(counts.sum(1)).ravel(), 1))
    total = logs[:, None] + logs[None, :]
    similar = np.where(total > 0, common / np.where(total > 0, total, 1), 0.0)
    np.fill_diagonal(similar, 0)
    outgoing = similar.sum(1, keepdims=True)
    step = np.where(outgoing > 0, similar / np.where(outgoing > 0, outgoing, 1), 1 / n)
    ranks = np.full(n, 1 / n)
    for _ in range(100):
        after = (1 - DAMPING) / n + DAMPING * ranks @ step
        if np.abs(after - ranks).sum() < 1e-8:
            break
        ranks = after
    return after


def query_similarity(query: str, sentences: Sequence[str]) -> Float[np.ndarray, " n"]:
    """Compute the cosine of each sentence with a query, words weighted by their frequency here (tf-idf)."""
    counts = _count_matrix([words_of(each) for each in (query, *sentences)])
    found = np.asarray((counts > 0).sum(0)).ravel()
    weighted = counts @ scipy.sparse.diags(np.log((1 + counts.shape[0]) / (1 + found)) + 1)
    norm = np.sqrt(np.asarray(weighted.multiply(weighted).sum(1)).ravel())
    products = np.asarray((weighted[1:] @ weighted[0].T).todense()).ravel()
    return products / np.maximum(norm[1:] * norm[0], 1e-12)


def _count_matrix(sentences: Sequence[tuple[str, ...]]) -> scipy.sparse.csr_matrix:
    """Count the words of each sentence, [n, U]."""
    number: dict[str, int] = {}
    columns = [number.setdefault(word, len(number)) for words in sentences for word in words]
    ends = np.cumsum([0, *map(len, sentences)])
    shape = (len(sentences), max(len(number), 1))
    return scipy.sparse.csr_matrix((np.ones(len(columns)), columns, ends), shape)


def oracle(sentences: Sequence[str], summary: str, count: int) -> list[int]:
    """Choose sentences greedily by ROUGE-1 + ROUGE-2 with a summary, while they add to it (Liu & Lapata 2019).

    ROUGE is the F-measure of words and of pairs of words within sentences, without stems. Of equal ones the earlier
    sentence is taken; none where no word is shared.
    """
    parts = [
        _Overlap.of([ngrams(words_of(each), n) for each in sentences], ngrams(words_of(summary), n)) for n in (1, 2)
    ]
    chosen: list[int] = []
    best = 0.0
    while len(chosen) < min(count, len(sentences)):
        scores = sum(part.f_with(chosen) for part in parts)
        scores[chosen] = -1
        at = int(np.argmax(scores))
        if scores[at] <= best + 1e-12:
            break
        best = float(scores[at])
        chosen.append(at)
    return sorted(chosen)


class _Overlap(NamedTuple):
    """Counts of a summary's n-grams in each sentence."""

    counts: Int[np.ndarray, "n U"]
    wanted: Int[np.ndarray, " U"]
    lengths: Int[np.ndarray, " n"]
    """N-grams of each sentence."""

    @classmethod
    def of(cls, sentences: Sequence[Sequence[Hashable]], summary: Sequence[Hashable]) -> "_Overlap":
        wanted = Counter(summary)
        column = {gram: i for i, gram in enumerate(wanted)}
        counts = np.zeros((len(sentences), max(len(column), 1)), np.int64)
        for row, grams in enumerate(sentences):
            for gram in grams:
                if gram in column:
                    counts[row, column[gram]] += 1
        return cls(counts, np.array([*wanted.values()] or [0]), np.array([len(each) for each in sentences]))

    def f_with(self, chosen: Sequence[int]) -> Float[np.ndarray, " n"]:
        """Compute the F-measure of the chosen sentences with each sentence beside them."""
        counts = self.counts + self.counts[list(chosen)].sum(0)
        overlap = np.minimum(counts, self.wanted).sum(1)
        total = self.lengths + self.lengths[list(chosen)].sum() + self.wanted.sum()
        return 2 * overlap / np.maximum(total, 1)


def choose(scores: Float[np.ndarray, " n"], sentences: Sequence[str], count: int, *, block: bool = True) -> list[int]:
    """Choose the sentences of the highest scores, in order.

    Args:
      block: leave out a sentence that has three words in a row with a better one (Paulus et al. 2017).

    >>> choose(np.array([0.9, 0.8, 0.1]), ["we meet at noon", "so we meet at noon", "bye"], 2)
    [0, 2]
    """
    chosen: list[int] = []
    seen: set[tuple[str, ...]] = set()
    for at in np.argsort(-np.asarray(scores), kind="stable").tolist():
        grams = set(ngrams(words_of(sentences[at]), 3))
        if block and grams & seen:
            continue
        chosen.append(at)
        seen |= grams
        if len(chosen) == count:
            break
    return sorted(chosen)


class SentenceRow(NamedTuple):
    """Some sentences of a document as an encoder reads them (Liu & Lapata 2019): [CLS] sentence [SEP] [CLS] …"""

    tokens: list[int]
    types: list[int]
    """0 and 1 in turns, sentence by sentence."""
    marks: list[int]
    """Where the [CLS] of each sentence is."""
    sentences: list[int]
    """Their numbers in the document."""


def sentence_rows(
    query: Sequence[int], sentences: Sequence[Sequence[int]], *, cls: int, sep: int, length: int
) -> list[SentenceRow]:
    """Lay out a document of any length in rows of at most `length` tokens, each behind the query, whole sentences each.

    A query is [CLS] query [SEP] of type 0, and is cut to half a row; a sentence that is longer than a row is cut at its
    end.

    >>> sentence_rows([], [[5, 6], [7], [8, 9]], cls=1, sep=2, length=7)[0]
    SentenceRow(tokens=[1, 5, 6, 2, 1, 7, 2], types=[0, 0, 0, 0, 1, 1, 1], marks=[0, 4], sentences=[0, 1])
    """
    before = [cls, *query[: length // 2 - 2], sep] if len(query) else []
    if length - len(before) < 3:
        raise ValueError(f"a row must have room for a sentence with its marks, got length={length}")
    rows: list[SentenceRow] = []
    row = None
    for number, ids in enumerate(sentences):
        ids = [cls, *ids[: length - len(before) - 2], sep]
        if row is None or len(row.tokens) + len(ids) > length:
            row = SentenceRow([*before], [0] * len(before), [], [])
            rows.append(row)
        kind = (len(row.marks) + bool(before)) % 2
        row.marks.append(len(row.tokens))
        row.sentences.append(number)
        row.tokens.extend(ids)
        row.types.extend([kind] * len(ids))
    return rows
