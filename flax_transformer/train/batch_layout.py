"""Data on many devices: in training each process gives its rows of a batch, in evaluation rows are filled up."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from flax_transformer.parallel.axis import parts
from flax_transformer.train.loop import Batches


def shared(batches: Batches, parts: tuple[int, ...], count: int) -> Batches:
    """Have a process lay out only some of `count` equal parts of every batch's rows.

    Batches with a method `share(parts, count)` are told; of any others, which make whole batches in every process,
    the rows are picked.
    """
    if hasattr(batches, "share"):
        batches.share(parts, count)
        return batches
    return batches if len(parts) == count else _Picked(batches, parts, count)


@contextlib.contextmanager
def closed(batches: Batches) -> Iterator[Batches]:
    """Stop the threads or workers of batches that have any, at the end."""
    try:
        yield batches
    finally:
        getattr(batches, "close", lambda: None)()


def work_in(batches: Batches, workers: int) -> None:
    """Have batches laid out by so many processes beside this one.

    Raises:
      ValueError: batches that are not a `Stream`'s, which no workers lay out, or a negative number.
    """
    if hasattr(batches, "work_in"):
        batches.work_in(workers)
    elif workers:
        raise ValueError(f"workers lay out the batches of a Stream, got {type(batches).__name__} and {workers} workers")


def fill_rows(batch: Any, separable: bool = True) -> Any:
    """Add rows of zeros until the mesh in context can split a batch of evaluation.

    They count nothing in the objectives of this package, as their weights are 0.

    Args:
      batch: a pytree of arrays with a leading axis of rows.
      separable: as the objective says (`is_separable`). If it is not, as where every row is compared with every other,
        rows of zeros would count, so there are none; what the mesh cannot split is then whole on every device.
    """
    count = parts("batch", "layers") if separable else 1

    def add(leaf):
        return np.pad(leaf, [(0, -len(leaf) % count)] + [(0, 0)] * (np.ndim(leaf) - 1))

    return jax.tree.map(add, batch) if count > 1 else batch


class _Picked(Iterator):
    """Some rows of the batches of another iterator."""

    def __init__(self, batches: Batches, parts: tuple[int, ...], count: int):
        self._batches, self._parts, self._count = batches, list(parts), count

    def __next__(self) -> Any:
        return jax.tree.map(self._pick, next(self._batches))

    def _pick(self, leaf: Any) -> np.ndarray:
        if leaf.shape[0] % self._count:
            raise ValueError(f"rows must be a multiple of the parts, got {leaf.shape[0]} rows, {self._count} parts")
        return np.concatenate([np.split(np.asarray(leaf), self._count)[part] for part in self._parts])

    def get_state(self) -> dict:
        """Return the position."""
        return self._batches.get_state()

    def set_state(self, state: dict) -> None:
        """Go on from a position."""
        self._batches.set_state(state)
