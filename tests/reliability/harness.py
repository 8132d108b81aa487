"""Run the tiny experiment in processes of its own, send them signals, and read what they left behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from flax_transformer.launch.local import free_port
from flax_transformer.train.checkpoint import Checkpoints

ROOT = Path(__file__).parent.parent.parent
TINY = Path(__file__).parent / "tiny.py"


@dataclass
class Ended:
    """How a process ended."""

    code: int
    out: str
    at: float
    """When it said its last, by the clock all share."""


def environment(cache: Path, **more: object) -> dict[str, str]:
    """Share compiled programs among processes, as a restart on a real machine does."""
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "200",
        **{name: str(value) for name, value in more.items()},
    }


class Job:
    """One run of one or several processes, whose output is collected while they go on."""

    def __init__(
        self, folder: Path, *arguments: object, cache: Path, processes: int = 1, file: Path = TINY, under=(), **env
    ):
        port = free_port()
        self._ended = [0.0] * processes
        self._lines: list[list[str]] = [[] for _ in range(processes)]
        self._news = threading.Condition()
        self.members, self._readers = [], []
        for index in range(processes):
            multi = {
                "FLAX_TRANSFORMER_COORDINATOR": f"127.0.0.1:{port}",
                "FLAX_TRANSFORMER_PROCESSES": processes,
                "FLAX_TRANSFORMER_PROCESS_INDEX": index,
            }
            member = subprocess.Popen(
                [*under, sys.executable, str(file), "--workdir", str(folder), *map(str, arguments)],
                env=environment(cache, **(multi if processes > 1 else {}), **env),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            reader = threading.Thread(target=self._read, args=(member, index), daemon=True)
            reader.start()
            self.members.append(member)
            self._readers.append(reader)

    def _read(self, member: subprocess.Popen, index: int) -> None:
        for line in member.stdout:
            with self._news:
                self._lines[index].append(line)
                self._news.notify_all()
        self._ended[index] = time.monotonic()

    def wait_for(self, text: str, index: int = 0, timeout: float = 120) -> "Job":
        """Wait until a process has said something."""
        said = lambda: any(text in line for line in self._lines[index])  # noqa: E731
        with self._news:
            assert self._news.wait_for(said, timeout), f"{text!r} was not said:\n{''.join(self._lines[index])}"
        return self

    def send(self, number: signal.Signals, index: int = 0) -> "Job":
        self.members[index].send_signal(number)
        return self

    def kill(self) -> None:
        """Kill all at once, as a machine that loses power does."""
        for member in self.members:
            member.kill()
        self.end()

    def end(self, timeout: float = 240) -> list[Ended]:
        """Wait for all to end."""
        ended, limit = [], time.monotonic() + timeout
        try:
            for index, member in enumerate(self.members):
                code = member.wait(max(limit - time.monotonic(), 0.1))
                self._readers[index].join()
                ended.append(Ended(code, "".join(self._lines[index]), self._ended[index]))
        finally:
            for member in self.members:
                member.kill()
        return ended


def good(job: Job) -> list[Ended]:
    """Wait for a job that must end well."""
    ended = job.end()
    assert [one.code for one in ended] == [0] * len(ended), "\n".join(one.out[-3000:] for one in ended)
    return ended


def arrays(folder: Path, step: int) -> dict[str, bytes]:
    """Every array of a checkpoint, by path."""
    with Checkpoints(folder / "checkpoints", keep=None) as checkpoints:
        checkpoints.verify(step)
        like = {name: jax.ShapeDtypeStruct(s.shape, s.dtype) for name, s in checkpoints.shapes(step).items()}
        return {name: np.asarray(leaf).tobytes() for name, leaf in checkpoints.restore(like, step)[0].items()}


def saved(folder: Path) -> list[int]:
    with Checkpoints(folder / "checkpoints", keep=None) as checkpoints:
        return checkpoints.steps()


def records(folder: Path) -> list[dict]:
    """The lines of metrics.jsonl without speeds."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if "second" not in name} for line in lines]


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in records(folder)]


def copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to
