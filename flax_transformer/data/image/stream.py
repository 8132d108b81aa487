"""Batches of images, streamed for training and once through for evaluation; images that memory has room for.

Axes: B images, H W height and width in pixels, C channels.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from flax_transformer.data.examples import Arrays, Chain, Collate, Examples, Transform
from flax_transformer.data.identity import name_function
from flax_transformer.data.image.batch import Augment, Draw, image_batch
from flax_transformer.data.image.image_set import InMemoryImages
from flax_transformer.data.stream import Stream
from flax_transformer.data.table import Table

HELD_BYTES = 1 << 30
"""Images are held in memory, decoded and resized, if they take at most this much."""

THREADS = min(16, os.cpu_count() or 1)
"""Threads that decode images, which Pillow does outside of Python's lock."""


@runtime_checkable
class Source(Protocol):
    """Rows of batches by their numbers."""

    @property
    def identity(self) -> dict[str, Any]:
        """Name all that the rows depend on, in values JSON can hold."""
        ...

    def read(self, numbers: Int[np.ndarray, " B"]) -> Arrays:
        """Lay out rows."""
        ...


@dataclass(frozen=True, eq=False)
class DecodedRows:
    """Rows made of examples, each decoded when it is asked for."""

    examples: Examples
    collate: Collate

    @property
    def identity(self) -> dict[str, Any]:
        """Name examples and collation."""
        return {"examples": dict(self.examples.identity), "collate": name_function(self.collate)}

    def read(self, numbers: Int[np.ndarray, " B"]) -> Arrays:
        """Make examples and lay them out."""
        return self.collate([self.examples[number] for number in numbers.tolist()])


@dataclass(frozen=True, eq=False)
class InMemoryRows:
    """Rows picked from images in memory, all of them in random order, epoch after epoch."""

    images: Table
    """Labelled ones, of `InMemoryImages`."""
    seed: int

    @property
    def identity(self) -> dict[str, Any]:
        """Name images and order."""
        return {"data": self.images.fingerprint, "seed": self.seed}

    def read(self, numbers: Int[np.ndarray, " B"]) -> Arrays:
        """Pick rows."""
        indices = epoch_indices(numbers, len(self.images), self.seed)
        weights = np.ones(len(numbers), np.float32)
        return image_batch(self.images["image"].pixels[indices], self.images["label"][indices], weights)


def epoch_indices(numbers: Int[np.ndarray, " B"], count: int, seed: int) -> Int[np.ndarray, " B"]:
    """Return the indices of rows by their numbers: all `count` in random order, epoch after epoch."""
    epochs, places = np.divmod(numbers, count)
    indices = np.empty(len(numbers), np.int64)
    for epoch in np.unique(epochs).tolist():
        here = epochs == epoch
        indices[here] = order(count, seed, epoch)[places[here]]
    return indices


class ImageStream(Stream):
    """Batch i holds the rows i · rows, …, (i + 1) · rows − 1 of a source, changed with random numbers of seed and i."""

    def __init__(self, source: Source, *augment: Augment, rows: int, seed: int, pairs: bool = False, **options: int):
        """Return what the batches are made of.

        Args:
          source: where rows come from.
          augment: what changes batches, one after the other.
          rows: images in a batch of all processes.
          seed: of the random numbers that batches are changed with.
          pairs: whether rows belong together two by two, and stay in one process, as `MixupCutmix` needs it.
          options: those of `Stream`.
        """
        super().__init__(**{"threads": THREADS, "prefetch": max(8, THREADS), **options})
        self._source, self._augment, self._rows, self._seed, self._pairs = source, augment, rows, seed, pairs
        self.check_rows(self._count)

    def check_rows(self, count: int) -> None:
        """Check that the rows of a batch, or their pairs, are a multiple of `count`; raise ValueError if not."""
        parts = 2 * count if self._pairs else count
        if self._rows < 1 or self._rows % parts:
            what = "twice the processes, for rows are mixed two by two" if self._pairs else "the processes"
            raise ValueError(f"rows must be a positive multiple of {what}, got {self._rows} rows, {count} processes")

    def identity(self) -> dict[str, Any]:
        """Name the source, what changes batches, and their size."""
        augment = [name_function(each) for each in self._augment]
        return {**self._source.identity, "augment": augment, "augment_seed": self._seed, "rows": self._rows}

    def make(self, step: int) -> Arrays:
        """Lay out this process's rows of the batch of a step."""
        own = self.own(np.arange(self._rows))
        batch = self._source.read(step * self._rows + own)
        draw = Draw(np.random.default_rng((self._seed, step)), self._rows, own)
        for augment in self._augment:
            batch = augment(batch, draw)
        return batch


def load_images(split: Table, *transforms: Transform, limit: int = HELD_BYTES) -> Table | None:
    """Decode all images once and hold them in memory; None if they are not of one size or take more than a limit.

    Args:
      split: a table with a column `image`.
      transforms: what makes them one size, without random numbers.
      limit: bytes at most.

    Raises:
      ValueError: a damaged image, or one that a transform refuses; names it.
    """
    if isinstance(split["image"], InMemoryImages) and not transforms:
        return split
    change, rng, images = Chain(transforms), np.random.default_rng(0), split["image"]

    def read(index: int) -> np.ndarray:
        return np.asarray(change(split[index], rng)["image"])

    first = read(0)
    if first.nbytes * len(images) > limit:
        return None
    pixels = np.empty((len(images), *first.shape), np.uint8)

    def put(indices: range) -> bool:
        for index in indices:
            array = read(index)
            if array.shape != first.shape:
                return False
            pixels[index] = array
        return True

    parts = [range(begin, min(begin + 256, len(images))) for begin in range(0, len(images), 256)]
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            equal = all(pool.map(put, parts))
        finally:
            pool.shutdown(cancel_futures=True)
    if not equal:
        return None
    return split.with_columns(image=InMemoryImages(pixels[..., None] if pixels.ndim == 3 else pixels, images.name(0)))


def each_image_once(
    items: Sequence[Any],
    *transforms: Transform,
    rows: int,
    collate: Collate,
    normalise: Callable[[Arrays], Arrays] | None = None,
) -> Iterator[Arrays]:
    """Yield batches of every image once, in order; rows of the last that are left over have weight 0.

    Args:
      items: what has examples by number, such as a `Table`.
      transforms: of examples, without random numbers.
      rows: images a batch.
      collate: lays out a batch.
      normalise: the last change of a batch, if any.
    """
    import grain

    change, rng, count = Chain(transforms), np.random.default_rng(0), len(items)

    def make(first: int) -> Arrays:
        numbers = range(first, first + rows)
        batch = collate([change(items[n], rng) if n < count else None for n in numbers])
        return batch if normalise is None else normalise(batch)

    options = grain.ReadOptions(num_threads=THREADS, prefetch_buffer_size=THREADS)
    batches: Any = iter(
        grain.MapDataset.range(0, count, rows).map(lambda first: make(int(first))).to_iter_dataset(options)
    )
    try:
        yield from batches
    finally:
        batches.close()


@lru_cache(maxsize=4)
def order(count: int, seed: int, epoch: int) -> Int[np.ndarray, "_"]:
    """Shuffle the numbers below a count."""
    return np.random.default_rng((seed, epoch)).permutation(count)
