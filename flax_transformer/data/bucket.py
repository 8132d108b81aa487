"""Batches of rows of several lengths by a budget of tokens, drawn by a plan that is a pure function of seed and step.

A few lengths (boundaries) give a few shapes, each compiled once. Axes: n rows in all, B rows of a batch.
"""

import threading
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int, Integer

from flax_transformer.data.examples import Arrays
from flax_transformer.data.stream import Stream

Indices = Int[np.ndarray, "_"]
"""Of rows; -1 is an empty one."""


@runtime_checkable
class Bucketed(Protocol):
    """Rows that are laid out at the width of their bucket, such as `Tokenized`."""

    @property
    def lengths(self) -> Integer[np.ndarray, "n 2"]:
        """Count the tokens of both sides of each row, without end marks."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """Name what the rows are, in values JSON can hold."""
        ...

    def lay_out(self, indices: Indices, width: int) -> Arrays:
        """Lay rows out as one batch."""
        ...


class BucketPlan:
    """Which rows form the batch of which training step.

    A row has two sides, each with an end mark, and belongs to the smallest boundary that holds the longer one; a batch
    of boundary b has ``tokens // b`` rows, rounded down to a multiple of ``multiple``. In every epoch each row comes
    exactly once: rows are shuffled within their bucket and cut into batches, those left over move up to the next
    boundary, and only the last batch of the largest boundary may have empty rows (index -1). Then the batches are
    shuffled. Every epoch has the same number of batches of each shape, so ``plan[step]`` needs no history.

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
            raise ValueError("a batch plan needs at least one row, got 0")
        self._buckets = _buckets(lengths, self.boundaries)
        self._real = int(np.asarray(lengths).sum()) + 2 * self.examples
        self._epochs: dict[int, list[tuple[int, Indices]]] = {}
        self._lock = threading.Lock()
        self._shapes = [boundary for boundary, _ in self._cut(self._buckets)]

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the lock, which a worker has its own of."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    @property
    def batches_per_epoch(self) -> int:
        """Count the batches of every epoch."""
        return len(self._shapes)

    @property
    def padding(self) -> float:
        """The share of all source positions and target labels of an epoch that holds no token."""
        return 1 - self._real / sum(2 * boundary * self.batch_sizes[boundary] for boundary in self._shapes)

    def epoch(self, number: int) -> list[tuple[int, Indices]]:
        """Return the batches of one epoch in order: boundary and indices of the rows, -1 for an empty row."""
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


class BucketStream(Stream):
    """Batches by a bucket plan, which every process makes alike."""

    def __init__(self, plan: BucketPlan, examples: Bucketed, **options: int) -> None:
        """Return what the batches are made of; `options` are those of `Stream`."""
        super().__init__(**options)
        if plan.examples != len(examples.lengths):
            raise ValueError(
                f"plan and examples must be of one size, got {plan.examples} and {len(examples.lengths)} rows"
            )
        self._plan, self._examples = plan, examples
        self.check_rows(self._count)

    def check_rows(self, count: int) -> None:
        """Check that the rows of every batch are a multiple of ``count``; raise ValueError if not."""
        uneven = {boundary: rows for boundary, rows in self._plan.batch_sizes.items() if rows % count}
        if uneven:
            raise ValueError(
                f"rows of every batch must be a multiple of the processes, got {count} processes and rows by "
                f"boundary {uneven}; make the plan with multiple={count}"
            )

    def identity(self) -> dict[str, Any]:
        """Name the plan and the rows."""
        plan = self._plan
        named = {"seed": plan.seed, "tokens": plan.tokens, "multiple": plan.multiple}
        return {**named, "boundaries": list(plan.boundaries), **self._examples.identity}

    def make(self, step: int) -> Arrays:
        """Lay out this process's rows of the batch the plan has for a step."""
        boundary, indices = self._plan[step]
        return self._examples.lay_out(self.own(indices), boundary)


def eval_batches(
    examples: Bucketed, *, tokens: int, boundaries: tuple[int, ...], multiple: int = 1
) -> Iterator[tuple[Indices, Arrays]]:
    """Yield every row exactly once, shortest first, as (indices, batch); index -1 marks an empty row."""
    sizes = _batch_sizes(tuple(boundaries), tokens, multiple)
    lengths = examples.lengths
    buckets = _buckets(lengths, tuple(boundaries))
    longest = lengths.max(axis=1, initial=0)
    ordered = [bucket[np.argsort(longest[bucket], kind="stable")] for bucket in buckets]
    for boundary, indices in _cut(ordered, sizes):
        yield indices, examples.lay_out(indices, boundary)


def bucket_boundaries(lengths: Integer[np.ndarray, "n 2"], count: int, *, multiple: int = 1) -> tuple[int, ...]:
    """Choose at most ``count`` boundaries, each a multiple of ``multiple``, that need the fewest padded positions.

    Exact, by dynamic programming over the distinct lengths; the last boundary holds the longest row.

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
            f"every row must fit the largest boundary, got {int((needed > boundaries[-1]).sum())} of up to "
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
