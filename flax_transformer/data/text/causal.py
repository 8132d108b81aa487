"""Next-token prediction: documents packed into full rows, or windows of one long stream.

T positions. Examples hold ``tokens``, ``labels`` (the next token) and ``weights`` (1 where there is one), each [T].
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
