"""The stream of training batches: Grain's threads or workers lay them out, one position for any number of processes."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Shaped

from flax_transformer.data.examples import Arrays, Collate, Examples
from flax_transformer.data.identity import name_function
from flax_transformer.data.worker import in_workers


class Stream(Iterator[Arrays]):
    """Endless batches from a global step on; the position can be saved as JSON and restored.

    A subclass says how the batch of a step is made and what it is made of. Every process lays out only its own
    rows of each global batch, so the global batches, and a saved position, do not depend on how many processes there
    are.
    """

    def __init__(
        self, *, process_index: int = 0, process_count: int = 1, start: int = 0, threads: int = 2, prefetch: int = 8
    ) -> None:
        if not 0 <= process_index < process_count:
            raise ValueError(f"process_index must be in 0..{process_count - 1}, got {process_index}")
        self._parts, self._count = (process_index,), process_count
        self._reading = (threads, prefetch)
        self._workers = 0
        self._step = start
        self._batches: Any = None

    @abstractmethod
    def make(self, step: int) -> Arrays:
        """Lay out this process's rows of a global batch; a pure function, called by several threads."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Name all that the batches depend on, in values JSON can hold."""

    def __next__(self) -> Arrays:
        if self._batches is None:
            self._batches = self._read_from(self._step)
        batch = next(self._batches)
        self._step += 1
        return batch

    def share(self, parts: tuple[int, ...], count: int) -> None:
        """Lay out only these of `count` equal parts of every batch's rows, in place of those of the process's number.

        Raises:
            ValueError: the rows of a batch cannot be divided so.
        """
        self.check_rows(count)
        self.close()
        self._parts, self._count = tuple(parts), count

    def work_in(self, workers: int) -> None:
        """Lay out batches in so many worker processes, which do not share Python's lock; 0: in threads of this one.

        Batches and positions are the same. Workers start with the next batch, each with a copy of the data in memory.

        Raises:
            ValueError: a negative number.
        """
        if workers < 0:
            raise ValueError(f"workers must not be negative, got {workers}")
        self.close()
        self._workers = workers

    @abstractmethod
    def check_rows(self, count: int) -> None:
        """Check that the rows of every batch are a multiple of ``count``; raise ValueError if not."""

    def own(self, rows: Shaped[np.ndarray, " B"]) -> Shaped[np.ndarray, " b"]:
        """Pick this process's share of what stands for the rows of a batch."""
        return rows.reshape(self._count, -1)[list(self._parts)].reshape(-1)

    @property
    def step(self) -> int:
        """The global step whose batch comes next."""
        return self._step

    def get_state(self) -> dict[str, Any]:
        """Describe position and pipeline in values JSON can hold."""
        return {"step": self._step, **self.identity()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue at a saved position.

        Raises:
            ValueError: the state was saved by a pipeline of other data, tokenizer or options; names each difference.
        """
        mine = self.identity()
        names = sorted((mine.keys() | state.keys()) - {"step"})
        differ = [
            f"{name}: saved {state.get(name)!r}, now {mine.get(name)!r}"
            for name in names
            if state.get(name) != mine.get(name)
        ]
        if differ:
            raise ValueError(f"a data position belongs to one pipeline, got another: {'; '.join(differ)}")
        step = state.get("step")
        if not isinstance(step, int) or step < 0:
            raise ValueError(f"a data position must hold a step of at least 0, got {step!r}")
        self.close()
        self._step = step

    def close(self) -> None:
        """Stop the threads or workers; the next batch starts them again."""
        if self._batches is not None:
            self._batches.close()
        self._batches = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker needs to lay out batches."""
        return {**vars(self), "_batches": None}

    def _read_from(self, step: int) -> Iterator[Arrays]:
        import grain

        endless = grain.MapDataset.range(step, np.iinfo(np.int64).max)
        threads, prefetch = (1, 2) if self._workers else self._reading
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch)
        batches = endless.map(lambda step: self.make(int(step))).to_iter_dataset(options)
        return iter(in_workers(batches, self._workers) if self._workers else batches)


class ExampleStream(Stream):
    """Batch i holds the examples i · rows, …, (i + 1) · rows − 1, of which each process lays out its share."""

    def __init__(
        self,
        examples: Examples,
        collate: Collate,
        *,
        rows: int,
        **options: int,
    ) -> None:
        """Return what the batches are made of; `options` are those of `Stream`."""
        super().__init__(**options)
        self._examples, self._collate, self._rows = examples, collate, rows
        self.check_rows(self._count)

    def check_rows(self, count: int) -> None:
        """Check that the rows of a batch are a multiple of ``count``; raise ValueError if not."""
        if self._rows < 1 or self._rows % count:
            raise ValueError(
                f"rows must be a positive multiple of the processes, got {self._rows} rows, {count} processes"
            )

    def identity(self) -> dict[str, Any]:
        """Name the examples, the collation and the size of a batch."""
        return {"examples": dict(self._examples.identity), "collate": name_function(self._collate), "rows": self._rows}

    def make(self, step: int) -> Arrays:
        """Lay out this process's rows of the batch of a step."""
        numbers = self.own(np.arange(step * self._rows, (step + 1) * self._rows))
        return self._collate([self._examples[number] for number in numbers.tolist()])
