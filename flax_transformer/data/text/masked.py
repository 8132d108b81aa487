"""Masked language modelling (Devlin et al. 2019, https://arxiv.org/abs/1810.04805, section 3.1)."""

import numpy as np
from jaxtyping import Bool, Int

from flax_transformer.data.examples import Example
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
