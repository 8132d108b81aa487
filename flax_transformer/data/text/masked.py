"""BERT's two tasks (Devlin et al. 2019, https://arxiv.org/abs/1810.04805): masked language modelling (section 3.1) and
next sentence prediction (section 3.1 and appendix A.2).
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from flax_transformer.data.examples import Example
from flax_transformer.data.identity import digest
from flax_transformer.data.text.batch import Ragged, ragged
from flax_transformer.frozen import frozen


@frozen
class MLMMasking:
    """Choose tokens to be predicted and hide most of them.

    Of the n tokens that are not special, round(share · n) are chosen, at least one if there is any. A chosen token
    becomes ``mask`` with probability ``mask_share``, a random token that is not special with ``random_share``, and
    else stays. The example's ``labels`` are its tokens as they were, ``weights`` are 1 where chosen; fields of other
    names stay.

    With ``words``, the name of a field of word ids, all tokens of a word are chosen together; words that would exceed
    the number are passed over, unless that would leave none. Tokens of word −1 are special. Word ids are used up.
    """

    vocab_size: int
    mask: int
    special: tuple[int, ...]
    """Ids never chosen, never put in: padding, marks; the mask belongs to them by itself."""
    share: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    words: str | None = None

    def __post_init__(self) -> None:
        special = tuple(sorted({*self.special, self.mask}))
        if not 0 < self.share < 1 or min(self.mask_share, self.random_share) < 0:
            raise ValueError(
                f"shares must be positive and share below 1, got share={self.share}, mask_share={self.mask_share}, "
                f"random_share={self.random_share}"
            )
        if self.mask_share + self.random_share > 1:
            raise ValueError(f"shares must sum to at most 1, got {self.mask_share} + {self.random_share}")
        if special[0] < 0 or special[-1] >= self.vocab_size or len(special) == self.vocab_size:
            raise ValueError(f"special ids must lie in the vocabulary of {self.vocab_size}, got {special}")
        object.__setattr__(self, "special", special)

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Choose and hide tokens of one example."""
        tokens = np.asarray(example["tokens"], np.int32)
        open_ = ~np.isin(tokens, self.special)
        if self.words is None:
            chosen = self._choose(np.flatnonzero(open_), rng)
        else:
            words = np.asarray(example[self.words])
            chosen = self._choose_words(np.where(open_, words, -1), rng)
        weights = np.zeros(len(tokens), np.float32)
        weights[chosen] = 1
        kept = {name: value for name, value in example.items() if name != self.words}
        return {**kept, "tokens": self._hide(tokens, weights > 0, rng), "labels": tokens, "weights": weights}

    def _count(self, choosable: int) -> int:
        return max(1, round(self.share * choosable)) if choosable else 0

    def _choose(self, places: Int[np.ndarray, " n"], rng: np.random.Generator) -> Int[np.ndarray, " m"]:
        return rng.choice(places, self._count(len(places)), replace=False)

    def _choose_words(self, words: Int[np.ndarray, " T"], rng: np.random.Generator) -> Int[np.ndarray, " m"]:
        ids, sizes = np.unique(words[words >= 0], return_counts=True)
        left, taken = self._count(int(sizes.sum())), []
        order = rng.permutation(len(ids))
        for word in order.tolist():
            if sizes[word] <= left:
                taken.append(word)
                left -= int(sizes[word])
        return np.flatnonzero(np.isin(words, ids[taken or order[:1]]))

    def _hide(
        self, tokens: Int[np.ndarray, " T"], chosen: Bool[np.ndarray, " T"], rng: np.random.Generator
    ) -> Int[np.ndarray, " T"]:
        draw = rng.random(len(tokens))
        other = rng.integers(0, self.vocab_size - len(self.special), len(tokens))
        for id in self.special:  # in rising order: step over each special id
            other += other >= id
        hidden = np.where(draw < self.mask_share, self.mask, other)
        return np.where(chosen & (draw < self.mask_share + self.random_share), hidden, tokens).astype(np.int32)


@frozen
class WordIds:
    """Number the words of an example in its field ``words``: a token of ``continuing`` belongs to the word before it.

    For WordPiece these are the ids of the ``##`` pieces, for byte-level BPE those that do not begin with a space. A
    special token is −1, and a word ends there.

    >>> number = WordIds(continuing=(7, 8), special=(1, 2))
    >>> number({"tokens": np.array([1, 5, 7, 8, 6, 2])}, np.random.default_rng(0))["words"].tolist()
    [-1, 1, 1, 1, 2, -1]
    """

    continuing: tuple[int, ...]
    special: tuple[int, ...]

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Add ``words`` to one example."""
        tokens = np.asarray(example["tokens"])
        special = np.isin(tokens, self.special)
        begins = ~np.isin(tokens, self.continuing) | np.concatenate([[True], special[:-1]])[: len(tokens)]
        return {**example, "words": np.where(special, -1, np.cumsum(begins) - 1)}


Tokens = Int[np.ndarray, "_"]


@dataclass(frozen=True, eq=False, kw_only=True)
class NextSentence:
    """Pair a stretch of sentences with the one that follows it, or, half the time, with one of another document.

    ``documents`` are bounds into ``sentences``: document d has the sentences documents[d] … documents[d + 1] −
    1. The transform takes the number of a sentence to start from and gives ``tokens`` ([CLS] A [SEP] B [SEP]),
    ``types`` (1 from B on) and ``next_sentence`` (0: B follows A, 1: B is random). Sentences are gathered up to
    ``length`` tokens, marks included (with probability ``short`` up to a random smaller number), and parted at random;
    the longer side then loses tokens at a random end until the pair fits.

    Use it on all starts: ``shuffled(pairs.starts, pairs, MLMMasking(...), seed=0)``.
    """

    sentences: Ragged
    documents: Int[np.ndarray, " bounds"]
    length: int
    cls: int
    sep: int
    short: float = 0.1

    def __post_init__(self) -> None:
        bounds = self.documents
        if len(bounds) < 3 or bounds[0] != 0 or bounds[-1] != len(self.sentences) or (np.diff(bounds) < 1).any():
            raise ValueError(
                "bounds must rise from 0 to the number of sentences over at least 2 documents, got "
                f"{bounds[:3]}…{bounds[-1:]}, {len(self.sentences)} sentences"
            )
        if not self.sentences.lengths.all():
            raise ValueError(f"sentences must have tokens, got none in {int(np.argmin(self.sentences.lengths))}")
        if self.length < 5 or not 0 <= self.short <= 1:
            raise ValueError(f"length must hold 3 marks and 2 tokens, short a share, got {self.length}, {self.short}")
        if (np.diff(bounds) < 2).all():
            raise ValueError("a document must have a second sentence for the first to be followed by, got none")

    @functools.cached_property
    def starts(self) -> Sequence[int]:
        """All sentences that another one of the same document follows."""
        last = np.zeros(len(self.sentences), bool)
        last[self.documents[1:] - 1] = True
        return np.flatnonzero(~last).tolist()

    @functools.cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of sentences, documents and options in hexadecimal."""
        options = f"NextSentence {self.length} {self.cls} {self.sep} {self.short}"
        return digest(options, self.documents, self.sentences.offsets, self.sentences.flat)

    def __call__(self, start: int, rng: np.random.Generator) -> Example:
        """Make the pair that starts with a sentence."""
        room = self.length - 3
        goal = int(rng.integers(2, room + 1)) if rng.random() < self.short else room
        document = int(np.searchsorted(self.documents, start, side="right")) - 1
        # Two sentences at least, so that there is a next one.
        end = max(self._gather(start, document, goal), start + 2)
        middle = int(rng.integers(start + 1, end))
        first, label = self._text(start, middle), int(rng.random() < 0.5)
        second = self._text(middle, end) if not label else self._other(document, max(goal - len(first), 1), rng)
        first, second = _truncate(first, second, goal, rng)
        tokens = np.concatenate([[self.cls], first, [self.sep], second, [self.sep]]).astype(np.int32)
        types = np.repeat(np.array([0, 1], np.int32), [len(first) + 2, len(second) + 1])
        return {"tokens": tokens, "types": types, "next_sentence": label}

    def _gather(self, start: int, document: int, goal: int) -> int:
        """Find the sentence at or before the document's end with which ``goal`` tokens are reached."""
        offsets = self.sentences.offsets
        reached = int(np.searchsorted(offsets, offsets[start] + goal, side="left"))
        return min(reached, int(self.documents[document + 1]))

    def _other(self, document: int, goal: int, rng: np.random.Generator) -> Tokens:
        other = int(rng.integers(len(self.documents) - 2))
        other += other >= document
        start = int(rng.integers(self.documents[other], self.documents[other + 1]))
        return self._text(start, self._gather(start, other, goal))

    def _text(self, begin: int, end: int) -> Tokens:
        offsets = self.sentences.offsets
        return np.asarray(self.sentences.flat[offsets[begin] : offsets[end]], np.int32)


def sentence_bounds(documents: Sequence[Sequence[Sequence[int]]]) -> tuple[Ragged, Int[np.ndarray, " bounds"]]:
    """Lay documents, lists of sentences of tokens, end to end as ``NextSentence`` takes them.

    >>> sentences, documents = sentence_bounds([[[5, 6], [7]], [[8]]])
    >>> len(sentences), documents.tolist()
    (3, [0, 2, 3])
    """
    sentences = ragged([sentence for document in documents for sentence in document])
    return sentences, np.cumsum([0, *(len(document) for document in documents)])


def _truncate(first: Tokens, second: Tokens, goal: int, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
    """Drop tokens of the longer side, each from a random end, until both have ``goal`` together."""
    longer, shorter = max(len(first), len(second)), min(len(first), len(second))
    excess = longer + shorter - goal
    if excess <= 0:
        return first, second
    from_longer = min(excess, longer - shorter)
    rest = excess - from_longer
    # Once equal, the sides take turns, the second first.
    drop = {True: from_longer + rest // 2, False: (rest + 1) // 2}
    first_is_longer = len(first) > len(second)
    return _trim(first, drop[first_is_longer], rng), _trim(second, drop[not first_is_longer], rng)


def _trim(tokens: Tokens, count: int, rng: np.random.Generator) -> Tokens:
    front = int(rng.binomial(count, 0.5))
    return tokens[front : len(tokens) - (count - front)]
