"""Where numbers go: metrics.jsonl always, TensorBoard too, Weights & Biases or trackio where installed."""

import contextlib
import importlib.util
import json
import math
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

from flax_transformer.atomic import write_file


@runtime_checkable
class MetricWriter(Protocol):
    """Takes the numbers of a step."""

    def write(self, step: int, split: str, metrics: dict[str, float]) -> None:
        """Record metrics of a split (train, validation, test)."""

    def close(self) -> None:
        """Flush what is held back."""


class JsonLines:
    """One object a line, floats at full precision, flushed at once, so that two runs can be compared by `diff`."""

    def __init__(self, path: str | os.PathLike, *, after: int | None = None):
        """Append to `path`; what a run resumed from step `after` writes again is dropped: later steps, and the test."""
        path = Path(path)
        if after is not None and path.exists():
            kept = [line for line in path.read_text().splitlines() if _keeps(line, after)]
            write_file(path, "".join(line + "\n" for line in kept))
        self._file = path.open("a")

    def write(self, step: int, split: str, metrics: dict[str, float]) -> None:
        """Write a line; what is not finite becomes null, as JSON has no word for it."""
        values = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._file.write(json.dumps({"step": step, "split": split, **values}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _keeps(line: str, after: int) -> bool:
    try:
        record = json.loads(line)
        return record["step"] <= after and record["split"] != "test"
    except (ValueError, KeyError, TypeError):  # a line cut short by a kill
        return False


class TensorBoard:
    """Event files, one tag `split/name` a metric; written at once, so that a disk that is full is told here."""

    def __init__(self, folder: str | os.PathLike, *, after: int | None = None):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.record_writer import directory_check

        directory_check(str(folder))
        self._file = EventsWriter(os.path.join(folder, "events"))
        if after is not None:  # whoever reads the files drops what was written of later steps
            self._file.write_event(Event(step=after + 1, session_log=SessionLog(status=SessionLog.START)))

    def write(self, step: int, split: str, metrics: dict[str, float]) -> None:
        """Add one scalar a metric."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=f"{split}/{name}", simple_value=value) for name, value in metrics.items()]
        self._file.write_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        self._file.flush()

    def close(self) -> None:
        """Flush and close."""
        self._file.close()


class Tracker:
    """Weights & Biases or trackio, which share one interface."""

    def __init__(self, module: str, project: str, folder: str | os.PathLike):
        if importlib.util.find_spec(module) is None:
            raise ValueError(f"tracking by {module} needs it installed: pip install 'flax-transformer[{module}]'")
        self._module = importlib.import_module(module)
        self._module.init(project=project, name=Path(folder).name)

    def write(self, step: int, split: str, metrics: dict[str, float]) -> None:
        """Log one value a metric."""
        self._module.log({f"{split}/{name}": value for name, value in metrics.items()}, step=step)

    def close(self) -> None:
        """Finish the run."""
        self._module.finish()


class Writers:
    """Several writers as one."""

    def __init__(self, writers: Iterable[MetricWriter]):
        self._writers = list(writers)

    def write(self, step: int, split: str, metrics: dict[str, float]) -> None:
        """Pass on to each."""
        for writer in self._writers:
            writer.write(step, split, metrics)

    def close(self) -> None:
        """Close each, also when one before it cannot be; what that met is raised in the end."""
        with contextlib.ExitStack() as stack:
            for writer in reversed(self._writers):
                stack.callback(writer.close)
