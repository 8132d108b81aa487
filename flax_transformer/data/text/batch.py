"""Fixed-shape batches of token pairs by a budget of tokens, drawn by a plan that is a pure function of seed and step.

B rows, S source positions, T target labels. A few lengths (boundaries) give a few shapes, each compiled once.
"""

import dataclasses
import functools
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
from jaxtyping import Int, Integer

from flax_transformer.data.examples import Arrays
from flax_transformer.data.text.padded_batch import teacher_forcing_batch
from flax_transformer.data.text.pair import PairSource
from flax_transformer.data.text.tokenizer import BOS, EOS, PAD, Tokenizer

Indices = Int[np.ndarray, "_"]  # of pairs; -1 is an empty row


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


def collate(examples: Tokenized, indices: Int[np.ndarray, " B"], boundary: int) -> Arrays:
    """Lay pairs out as one batch; index -1 makes an empty row (all padding, lengths and weights 0).

    Sources [B, S] are tokens, end mark and padding, labels [B, T] likewise, with S = T = ``boundary``; the decoder
    reads the labels behind a begin mark. Lengths count the end mark. See ``teacher_forcing_batch`` for the batch.
    """
    source = _lay_out(examples.source, indices, boundary, examples.pad, examples.eos)
    labels = _lay_out(examples.target, indices, boundary, examples.pad, examples.eos)
    return teacher_forcing_batch(*source, *labels, start=examples.bos, pad=examples.pad)


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


class BucketPlan:
    """Which pairs form the batch of which training step.

    Each pair belongs to the smallest boundary that holds its longer side with the end mark; a batch of boundary b has
    ``tokens // b`` rows, rounded down to a multiple of ``multiple``. In every epoch each pair comes exactly once:
    pairs are shuffled within their bucket and cut into batches, those left over move up to the next boundary, and
    only the last batch of the largest boundary may have empty rows (index -1). Then the batches are shuffled. Every
    epoch has the same number of batches of each shape, so ``plan[step]`` needs no history.

    >>> plan = BucketPlan(np.array([[2, 3], [7, 6], [3, 3]]), tokens=16, boundaries=(4, 8), seed=0)
    >>> plan.batch_sizes, plan.batches_per_epoch
    ({4: 4, 8: 2}, 2)
    """

    def __init__(
        self,
        lengths: Integer[np.ndarray, "n 2"],
        *,
        tokens: int,
        boundaries: tuple[int, ...],
        seed: int,
        multiple: int = 1,
    ) -> None:
        self.tokens, self.boundaries, self.seed, self.multiple = tokens, tuple(boundaries), seed, multiple
        self.batch_sizes = _batch_sizes(self.boundaries, tokens, multiple)
        self.examples = len(lengths)
        if not self.examples:
            raise ValueError("a batch plan needs at least one pair, got 0")
        self._buckets = _buckets(lengths, self.boundaries)
        self._real = int(np.asarray(lengths).sum()) + 2 * self.examples
        self._epochs: dict[int, list[tuple[int, Indices]]] = {}
        self._lock = threading.Lock()
        self._shapes = [boundary for boundary, _ in self._cut(self._buckets)]

    @property
    def batches_per_epoch(self) -> int:
        """Count the batches of every epoch."""
        return len(self._shapes)

    @property
    def padding(self) -> float:
        """The share of all source positions and target labels of an epoch that holds no token."""
        return 1 - self._real / sum(2 * boundary * self.batch_sizes[boundary] for boundary in self._shapes)

    def epoch(self, number: int) -> list[tuple[int, Indices]]:
        """Return the batches of one epoch in order: boundary and indices of the pairs, -1 for an empty row."""
        random = np.random.default_rng([self.seed, number])
        batches = self._cut([random.permutation(bucket) for bucket in self._buckets])
        return [batches[place] for place in random.permutation(len(batches))]

    def __getitem__(self, step: int) -> tuple[int, Indices]:
        if step < 0:
            raise IndexError(f"steps count from 0 without end, got {step}")
        epoch, place = divmod(step, self.batches_per_epoch)
        with self._lock:  # reader threads share the plan: shuffle a large corpus once, not once a thread
            if epoch not in self._epochs:
                # Two are kept, since threads read on both sides of the border between epochs.
                self._epochs = {number: self._epochs[number] for number in list(self._epochs)[-1:]}
                self._epochs[epoch] = self.epoch(epoch)
            return self._epochs[epoch][place]

    def _cut(self, buckets: list[Indices]) -> list[tuple[int, Indices]]:
        return _cut(buckets, self.batch_sizes)


def eval_batches(
    examples: Tokenized, *, tokens: int, boundaries: tuple[int, ...], multiple: int = 1
) -> Iterator[tuple[Indices, Arrays]]:
    """Yield every pair exactly once, shortest first, as (indices, batch); index -1 marks an empty row."""
    sizes = _batch_sizes(tuple(boundaries), tokens, multiple)
    lengths = examples.lengths
    buckets = _buckets(lengths, tuple(boundaries))
    longest = lengths.max(axis=1, initial=0)
    ordered = [bucket[np.argsort(longest[bucket], kind="stable")] for bucket in buckets]
    for boundary, indices in _cut(ordered, sizes):
        yield indices, collate(examples, indices, boundary)


def bucket_boundaries(lengths: Integer[np.ndarray, "n 2"], count: int, *, multiple: int = 1) -> tuple[int, ...]:
    """Choose at most ``count`` boundaries, each a multiple of ``multiple``, that need the fewest padded positions.

    Exact, by dynamic programming over the distinct lengths; the last boundary holds the longest pair.

    >>> bucket_boundaries(np.array([[3, 2], [3, 3], [9, 8]]), 2)
    (4, 10)
    """
    if count < 1:
        raise ValueError(f"count must be at least 1 boundary, got {count}")
    if not len(lengths):
        raise ValueError("boundaries are chosen from lengths, got none")
    needed = -(-(np.asarray(lengths, np.int64).max(axis=1) + 1) // multiple) * multiple
    edges, members = np.unique(needed, return_counts=True)
    total = np.concatenate([[0], np.cumsum(members)])
    best = np.where(np.arange(len(edges) + 1) == 0, 0.0, np.inf)  # best[j]: cost of the j shortest lengths
    choices = []
    for _ in range(min(count, len(edges))):
        # cost[i, j]: the i shortest as before, lengths i..j-1 padded to edges[j-1]
        cost = best[:, None] + np.triu((total[None, 1:] - total[:, None]) * edges[None, :].astype(float))
        cost[np.arange(len(edges) + 1)[:, None] > np.arange(len(edges))[None, :]] = np.inf
        choices.append(cost.argmin(axis=0))
        best = np.concatenate([[np.inf], cost.min(axis=0)])
    boundaries, end = [], len(edges)
    for choice in reversed(choices):
        boundaries.append(int(edges[end - 1]))
        end = int(choice[end - 1])
    return tuple(reversed(boundaries))


def _batch_sizes(boundaries: tuple[int, ...], tokens: int, multiple: int) -> dict[int, int]:
    if not boundaries or list(boundaries) != sorted(set(boundaries)) or boundaries[0] < 1:
        raise ValueError(f"boundaries must be positive and rise, got {boundaries}")
    if multiple < 1:
        raise ValueError(f"multiple must be at least 1 row, got {multiple}")
    largest = boundaries[-1]
    if tokens // largest < multiple:
        raise ValueError(
            f"a batch must hold at least multiple * boundary tokens, got tokens={tokens} < {multiple} * {largest}"
        )
    return {boundary: tokens // boundary // multiple * multiple for boundary in boundaries}


def _buckets(lengths: Integer[np.ndarray, "n 2"], boundaries: tuple[int, ...]) -> list[Indices]:
    needed = np.asarray(lengths, np.int64).max(axis=1, initial=0) + 1
    if len(needed) and needed.max() > boundaries[-1]:
        raise ValueError(
            f"every pair must fit the largest boundary, got {int((needed > boundaries[-1]).sum())} pairs of up to "
            f"{needed.max()} tokens with the end mark, boundary {boundaries[-1]}"
        )
    bucket_of = np.searchsorted(boundaries, needed)
    return [np.flatnonzero(bucket_of == bucket) for bucket in range(len(boundaries))]


def _cut(buckets: list[Indices], sizes: dict[int, int]) -> list[tuple[int, Indices]]:
    batches, carried = [], np.empty(0, np.int64)
    for bucket, (boundary, size) in zip(buckets, sizes.items(), strict=True):
        members = np.concatenate([carried, bucket])
        whole = len(members) // size * size
        batches += [(boundary, rows) for rows in members[:whole].reshape(-1, size)]
        carried = members[whole:]
    if len(carried):
        empty = np.full(size - len(carried), -1, np.int64)
        batches.append((boundary, np.concatenate([carried, empty])))
    return batches
