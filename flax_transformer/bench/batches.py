"""How fast the batches of an experiment are laid out, by threads or by worker processes; nothing trains."""

import resource
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax

from flax_transformer.bench.environment import environment
from flax_transformer.bench.experiment import opened, with_options
from flax_transformer.bench.target import find_experiment
from flax_transformer.task.command import split_target
from flax_transformer.text_table import align
from flax_transformer.train.batch_layout import closed, work_in
from flax_transformer.train.loop import Batches


@dataclass(frozen=True)
class Laid:
    """Batches that were laid out."""

    workers: int
    """Processes; 0: threads of this one."""
    first: float
    """Seconds to the first batch."""
    batches_per_second: float
    """Of those after the ones that were ready when the clock began."""
    rows_per_second: float
    cpu_seconds: float
    """Of this process and its workers, starting them included."""


def bench_data(name: str, workers: Sequence[int], *, count: int = 50, options: Sequence[str] = ()) -> dict[str, Any]:
    """Lay out batches of an experiment, with each number of workers in turn.

    Args:
      name: an experiment file, FILE:NAME for one of several in it.
      workers: numbers of processes; 0: threads of this one.
      count: batches that are timed, after twice as many as there are workers, and at least 10, that are not.
      options: as on the experiment's own command line.

    Raises:
      ValueError: no experiment, no numbers or negative ones, fewer than one batch, data that cannot work.
    """
    if not workers or min(workers) < 0 or count < 1:
        raise ValueError(
            f"workers must be numbers that are not negative, batches at least 1, got {tuple(workers)} and {count}"
        )
    path, which = split_target(name)
    if not path.endswith(".py"):
        raise ValueError(f"batches are those of an experiment's file, got {name}")
    experiment = with_options(find_experiment(Path(path), which), options)
    with opened(experiment) as task:
        found = [asdict(_laid(task.batches, each, count)) for each in workers]
    return {"target": {"name": name, "options": list(options), "batches": count}, "environment": environment(),
            "results": found}  # fmt: skip


def _laid(batches: Batches, workers: int, count: int) -> Laid:
    work_in(batches, workers)
    before, began = _cpu_seconds(), time.perf_counter()
    with closed(batches):  # a worker's CPU time counts from its end on
        rows = jax.tree.leaves(next(batches))[0].shape[0]
        first = time.perf_counter() - began
        for _ in range(max(10, 2 * workers)):
            next(batches)
        began = time.perf_counter()
        for _ in range(count):
            next(batches)
        rate = count / (time.perf_counter() - began)
    return Laid(workers, first, rate, rate * rows, _cpu_seconds() - before)


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def render_data(record: dict[str, Any]) -> str:
    """Write a table.

    >>> row = {"workers": 2, "first": 1.5, "batches_per_second": 20.0, "rows_per_second": 2560.0, "cpu_seconds": 3.0}
    >>> print(render_data({"results": [row]}))
    workers  first batch  batches/s  rows/s  CPU seconds
          2         1.5s       20.0   2,560          3.0
    """
    head = ("workers", "first batch", "batches/s", "rows/s", "CPU seconds")
    rows = [
        (
            str(row["workers"] or "threads"), f"{row['first']:.1f}s", f"{row['batches_per_second']:.1f}",
            f"{row['rows_per_second']:,.0f}", f"{row['cpu_seconds']:.1f}",
        )
        for row in record["results"]
    ]  # fmt: skip
    return align([head, *rows], "r")
