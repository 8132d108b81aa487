"""Documents as rows of tokens: packed into full rows, windows of one long stream, or pieces that fit a row.

T positions. Examples of language models hold ``tokens``, ``labels`` (the next token) and ``weights`` (1 where there is
one), each [T]; pieces are what masked language models, T5 and BART start from.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Integer

from flax_transformer.data.examples import Example
from flax_transformer.data.identity import digest
from flax_transformer.data.text.batch import Ragged


@dataclass(frozen=True, eq=False, kw_only=True)
class Packed(Sequence[Example]):
    """Rows of ``length`` tokens, filled with one document after the other; only the last row has padding.

    Beside tokens, labels and weights an example holds ``segments``, which number the documents of its row from 1 (0 is
    padding) and confine attention to them, and ``positions``, which restart with each. A document that ends within a
    row has no label there; one that goes on in the next row has its next token, so that every token but the first of
    a document is a label once.

    >>> from flax_transformer.data.text.batch import ragged
    >>> row = Packed(documents=ragged([[5, 6, 7], [8, 9]]), length=6)[0]
    >>> [row[name].tolist() for name in ("segments", "positions", "labels")]
    [[1, 1, 1, 2, 2, 0], [0, 1, 2, 0, 1, 0], [6, 7, 0, 9, 0, 0]]
    """

    documents: Ragged
    length: int
    pad: int = 0

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length must be at least 1 position, got {self.length}")

    def __len__(self) -> int:
        return -(-len(self.documents.flat) // self.length)

    def __getitem__(self, index: int) -> Example:
        first = range(len(self))[index] * self.length
        offsets, flat = self.documents.offsets, self.documents.flat
        places = np.arange(first, min(first + self.length, len(flat)))
        # The last document that starts here or before: empty ones start where the next does.
        document = np.searchsorted(offsets, places, side="right") - 1
        known = places + 1 < offsets[document + 1]
        begins = np.concatenate([[True], document[1:] != document[:-1]])
        fields = {
            "tokens": flat[places],
            "labels": np.where(known, flat[np.minimum(places + 1, len(flat) - 1)], 0),
            "segments": np.cumsum(begins),
            "positions": places - np.maximum(offsets[document], first),
        }
        out = {name: np.zeros(self.length, np.int32) for name in fields}
        out["tokens"][:] = self.pad
        for name, values in fields.items():
            out[name][: len(places)] = values
        weights = np.zeros(self.length, np.float32)
        weights[: len(places)] = known
        return {**out, "weights": weights}

    @functools.cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of documents and options in hexadecimal."""
        return digest(f"Packed {self.length} {self.pad}", self.documents.offsets, self.documents.flat)


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenWindows(Sequence[Example]):
    """Windows of ``length`` tokens of one long stream, one every ``stride`` tokens.

    Shuffled with stride 1 they are the random windows that character models train on; with a stride of the length
    they cover the stream once, for evaluation: every token but the first is a label of weight 1 in one of them. Where
    the stream ends within the last window, that begins earlier, so that it is full, and what comes before its own
    beginning has weight 0.

    >>> window = TokenWindows(tokens=np.array([5, 6, 7, 8]), length=2, stride=2)[1]
    >>> [window[name].tolist() for name in ("tokens", "labels", "weights")]
    [[6, 7], [7, 8], [0.0, 1.0]]
    """

    tokens: Integer[np.ndarray, " n"]
    length: int
    stride: int = 1

    def __post_init__(self) -> None:
        if min(self.length, self.stride) < 1:
            raise ValueError(f"length and stride must be at least 1, got {self.length}, {self.stride}")
        if len(self.tokens) <= self.length:
            raise ValueError(
                f"the stream must be longer than a window, got {len(self.tokens)} tokens, length {self.length}"
            )

    def __len__(self) -> int:
        labels = len(self.tokens) - 1
        # Windows further apart than they are long may end the stream in a gap: none begins behind the last label.
        return min(-(-(labels - self.length) // self.stride) + 1, -(-labels // self.stride))

    def __getitem__(self, index: int) -> Example:
        begin = range(len(self))[index] * self.stride
        first = min(begin, len(self.tokens) - 1 - self.length)
        piece = np.asarray(self.tokens[first : first + self.length + 1], np.int32)
        weights = (np.arange(self.length) >= begin - first).astype(np.float32)
        return {"tokens": piece[:-1], "labels": piece[1:], "weights": weights}

    @functools.cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of tokens and options in hexadecimal."""
        return digest(f"Windows of {self.length} every {self.stride}", self.tokens)


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
