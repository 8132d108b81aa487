"""Pairs of token sequences, end to end in memory, and their batches. B rows, S source positions, T target labels."""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
from jaxtyping import Int, Integer

from flax_transformer.data.bucket import Indices
from flax_transformer.data.examples import Arrays
from flax_transformer.data.text.padded_batch import teacher_forcing_batch
from flax_transformer.data.text.pair import PairSource
from flax_transformer.data.text.tokenizer import BOS, EOS, PAD, Tokenizer


@dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences of different lengths end to end in one array; item i is ``flat[offsets[i]:offsets[i + 1]]``."""

    flat: Integer[np.ndarray, " tokens"]
    offsets: Int[np.ndarray, " bounds"]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: SupportsIndex) -> Integer[np.ndarray, " length"]:
        index = range(len(self))[index]
        return self.flat[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> Int[np.ndarray, " n"]:
        """Count the tokens of each sequence."""
        return np.diff(self.offsets)

    def take(self, indices: Int[np.ndarray, " m"]) -> "Ragged":
        """Gather some sequences into a new ``Ragged``."""
        rows = [self[int(index)] for index in indices]
        return ragged(rows, self.flat.dtype)

    def save(self, prefix: str | os.PathLike) -> None:
        """Write ``{prefix}.tokens.npy`` and ``{prefix}.offsets.npy``."""
        np.save(f"{os.fspath(prefix)}.tokens.npy", self.flat)
        np.save(f"{os.fspath(prefix)}.offsets.npy", self.offsets)


def ragged(rows: Sequence[Sequence[int] | np.ndarray], dtype: np.dtype | type = np.int32) -> Ragged:
    """Lay rows end to end.

    >>> ragged([[5, 6], [], [7]]).lengths.tolist()
    [2, 0, 1]
    """
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    flat = np.concatenate([np.asarray(row, dtype) for row in rows]) if len(rows) else np.empty(0, dtype)
    return Ragged(flat, offsets)


def load_ragged(prefix: str | os.PathLike) -> Ragged:
    """Open what ``Ragged.save`` wrote, tokens mapped from disk instead of read.

    Raises:
        ValueError: a damaged file, or two that do not belong together.
    """
    try:
        flat = np.load(f"{os.fspath(prefix)}.tokens.npy", mmap_mode="r", allow_pickle=False)
        offsets = np.load(f"{os.fspath(prefix)}.offsets.npy", allow_pickle=False)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{prefix}.tokens.npy or {prefix}.offsets.npy is damaged: {error}") from error
    if any(array.ndim != 1 or array.dtype.kind not in "iu" for array in (flat, offsets)) or not len(offsets):
        raise ValueError(f"{prefix} must have rows of whole numbers, got {flat.dtype} and {offsets.dtype}")
    if offsets[0] != 0 or offsets[-1] != len(flat) or (np.diff(offsets) < 0).any():
        raise ValueError(f"{prefix}: offsets must rise from 0 to the {len(flat)} tokens, they end at {offsets[-1]}")
    return Ragged(flat, offsets)


@dataclass(frozen=True, eq=False)
class Tokenized:
    """Token pairs without special tokens; the fingerprint of the tokenizer that made them, and its marks."""

    source: Ragged
    target: Ragged
    tokenizer: str = ""
    pad: int = PAD
    bos: int = BOS
    eos: int = EOS

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise ValueError(
                f"source and target must be equally many, got {len(self.source)} and {len(self.target)} sequences"
            )

    def __len__(self) -> int:
        return len(self.source)

    @property
    def lengths(self) -> Int[np.ndarray, "n 2"]:
        """Count source and target tokens of each pair."""
        return np.stack([self.source.lengths, self.target.lengths], axis=1)

    def within(self, limit: int) -> "Tokenized":
        """Keep the pairs whose sides, end mark included, have at most ``limit`` tokens."""
        indices = np.flatnonzero(self.lengths.max(axis=1, initial=0) + 1 <= limit)
        return self._taken(indices)

    def aligned(self, spread: int) -> "Tokenized":
        """Keep the pairs whose targets fit ``spread`` positions for each source token, end marks included.

        Each token takes a position, and there is one without a token between two that are alike: what connectionist
        temporal classification can write.
        """
        taken = [
            1 + len(row) + int((row[1:] == row[:-1]).sum()) for row in map(self.target.__getitem__, range(len(self)))
        ]
        return self._taken(np.flatnonzero(np.array(taken, np.int64) <= spread * (self.source.lengths + 1)))

    def _taken(self, indices: Int[np.ndarray, " m"]) -> "Tokenized":
        if len(indices) == len(self):
            return self
        return dataclasses.replace(self, source=self.source.take(indices), target=self.target.take(indices))

    def lay_out(self, indices: Indices, width: int) -> Arrays:
        """Lay pairs out as one batch; index -1 makes an empty row (all padding, lengths and weights 0).

        Sources [B, S] are tokens, end mark and padding, labels [B, T] likewise, with S = T = ``width``; the decoder
        reads the labels behind a begin mark. Lengths count the end mark. See ``teacher_forcing_batch`` for the batch.
        """
        source = _lay_out(self.source, indices, width, self.pad, self.eos)
        labels = _lay_out(self.target, indices, width, self.pad, self.eos)
        return teacher_forcing_batch(*source, *labels, start=self.bos, pad=self.pad)

    @property
    def identity(self) -> dict[str, str]:
        """Name the pairs and the tokenizer."""
        return {"data": self.fingerprint, "tokenizer": self.tokenizer}

    @functools.cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of all tokens and lengths in hexadecimal."""
        digest = hashlib.sha256()
        for array in (self.source.offsets, self.target.offsets, self.source.flat, self.target.flat):
            digest.update(np.ascontiguousarray(array))
        return digest.hexdigest()


def tokenize(pairs: PairSource, tokenizer: Tokenizer, *, chunk: int = 16_384) -> Tokenized:
    """Encode all pairs, ``chunk`` at a time; sources that have ``__getitems__`` are read by it.

    A tokenizer with another for what is written has it as ``target``.
    """
    sides = {"source": [], "target": []}
    encoders = {"source": tokenizer, "target": getattr(tokenizer, "target", None) or tokenizer}
    for start in range(0, len(pairs), chunk):
        rows = _read(pairs, range(start, min(start + chunk, len(pairs))))
        for side, encoded in sides.items():
            encoded.append(_encode([row[side] for row in rows], encoders[side]))
    return _tokenized(_join(sides["source"]), _join(sides["target"]), tokenizer)


def tokenize_sources(texts: Sequence[str], tokenizer: Tokenizer) -> Tokenized:
    """Encode texts to be translated: pairs whose targets are empty."""
    return _tokenized(_encode(texts, tokenizer), ragged([[]] * len(texts)), tokenizer)


def _tokenized(source: Ragged, target: Ragged, tokenizer: Tokenizer) -> Tokenized:
    return Tokenized(source, target, tokenizer.fingerprint(), tokenizer.pad, tokenizer.bos, tokenizer.eos)


def _read(pairs: PairSource, indices: range) -> list[dict[str, str]]:
    if hasattr(pairs, "__getitems__"):
        return pairs.__getitems__(list(indices))
    return [pairs[index] for index in indices]


def _encode(texts: Sequence[str], tokenizer: Tokenizer) -> Ragged:
    return ragged(tokenizer.encode(texts), np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32)


def _join(parts: list[Ragged]) -> Ragged:
    if not parts:
        return ragged([])
    starts = np.cumsum([0, *(len(part.flat) for part in parts)])
    offsets = [part.offsets[:-1] + start for part, start in zip(parts, starts[:-1], strict=True)]
    return Ragged(np.concatenate([part.flat for part in parts]), np.concatenate([*offsets, starts[-1:]]))


def _lay_out(
    rows: Ragged, indices: Int[np.ndarray, " B"], width: int, pad: int, eos: int
) -> tuple[Int[np.ndarray, "B width"], Int[np.ndarray, " B"]]:
    out = np.full((len(indices), width), pad, np.int32)
    lengths = np.zeros(len(indices), np.int32)
    for row, index in enumerate(indices.tolist()):
        if index >= 0:
            tokens = rows[index]
            if len(tokens) >= width:
                raise ValueError(f"a row must hold its tokens and an end mark, got {len(tokens)} tokens, width {width}")
            out[row, : len(tokens)] = tokens
            out[row, len(tokens)] = eos
            lengths[row] = len(tokens) + 1
    return out, lengths
