"""Documents cut into pieces that fit a row: what masked language models, T5 and BART start from."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flax_transformer.data.examples import Example
from flax_transformer.data.identity import digest
from flax_transformer.data.text.batch import Ragged


@dataclass(frozen=True, eq=False, kw_only=True)
class Blocks(Sequence[Example]):
    """Pieces of at most ``length`` tokens, marks included, that never reach over the end of a document.

    Example i is ``{"tokens"}``: ``begin``, consecutive tokens of one document, ``end``. A piece of fewer than ``least``
    tokens, marks not counted, is left out: the rest of a document, or a short one whole.

    >>> from flax_transformer.data.text.batch import ragged
    >>> blocks = Blocks(documents=ragged([[5, 6, 7], [8]]), length=4, begin=(1,), end=(2,))
    >>> [example["tokens"].tolist() for example in blocks]
    [[1, 5, 6, 2], [1, 7, 2], [1, 8, 2]]
    """

    documents: Ragged
    length: int
    begin: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    least: int = 1

    def __post_init__(self) -> None:
        if self._room < 1:
            raise ValueError(f"length must exceed the marks, got {self.length} and {len(self.begin) + len(self.end)}")
        if not 1 <= self.least <= self._room:
            raise ValueError(f"least must be in 1..{self._room} tokens, got {self.least}")

    @property
    def _room(self) -> int:
        return self.length - len(self.begin) - len(self.end)

    @functools.cached_property
    def _first(self) -> np.ndarray:
        """The number of each document's first block."""
        whole, rest = np.divmod(self.documents.lengths, self._room)
        return np.concatenate([[0], np.cumsum(whole + (rest >= self.least))])

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, index: int) -> Example:
        index = range(len(self))[index]
        document = int(np.searchsorted(self._first, index, side="right")) - 1
        begin = (index - int(self._first[document])) * self._room
        piece = self.documents[document][begin : begin + self._room]
        return {"tokens": np.concatenate([self.begin, piece, self.end]).astype(np.int32)}

    @functools.cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of documents and options in hexadecimal."""
        options = f"Blocks {self.length} {self.begin} {self.end} {self.least}"
        return digest(options, self.documents.offsets, self.documents.flat)
