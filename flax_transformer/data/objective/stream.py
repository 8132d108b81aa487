"""Endless batches of a fixed shape, what a training loop consumes."""

from typing import Any

import numpy as np

from flax_transformer.data.objective.example import Collate, Examples
from flax_transformer.data.objective.identity import name_function
from flax_transformer.data.pipeline import Arrays, Stream


class ExampleStream(Stream):
    """Batch i holds the examples i · rows, …, (i + 1) · rows − 1, of which each process lays out its share."""

    def __init__(
        self,
        examples: Examples,
        collate: Collate,
        *,
        rows: int,
        process_index: int = 0,
        process_count: int = 1,
        start: int = 0,
        threads: int = 2,
        prefetch: int = 8,
    ) -> None:
        super().__init__(
            process_index=process_index, process_count=process_count, start=start, threads=threads, prefetch=prefetch
        )
        self._examples, self._collate, self._rows = examples, collate, rows
        self.check_rows(process_count)

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
