"""A watchdog for training steps: one that hangs, on whatever machine, ends the run and shows where it hung."""

import faulthandler
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import jax

from flax_transformer.parallel import multihost

TIMES = 10
"""A step may also take this many times the median of the last ones."""

PATIENCE = 6
"""What is no plain step (the first one, which is compiled; an evaluation; saving) may take this many times longer."""

GRACE = 2.0
"""Seconds between showing the stacks and ending, so that every process of a run can show its own."""


class Watchdog:
    """Ends the process with code 1 when `beat` is not called in time, after writing all stacks to stderr and a file.

    Where one process hangs, all others wait for it, so all show their stacks. A hang that holds Python's lock stops
    this thread too; faulthandler's own timer, which the thread winds up again and again, then does the same. Time for
    which the process is stopped (SIGSTOP, a laptop asleep) does not count, but for that timer.

    Args:
      limit: seconds a step may take; 0 lets it take for ever.
      path: file for the stacks.
    """

    def __init__(self, limit: float, path: Path):
        self._limit, self._path = limit, path
        self._steps: deque[float] = deque(maxlen=50)
        self._since, self._patience = time.monotonic(), PATIENCE
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        if self._limit:
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        if self._limit:
            self._thread.join()
            faulthandler.cancel_dump_traceback_later()

    def beat(self) -> None:
        """Record that a step is done; costs less than a microsecond."""
        now = time.monotonic()
        if self._patience == 1:
            self._steps.append(now - self._since)
        self._since, self._patience = now, 1

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Wait longer for what is no plain step."""
        self._patience = PATIENCE
        yield
        self._since, self._patience = time.monotonic(), 1

    @property
    def allowed(self) -> float:
        """Seconds that may pass now without a beat."""
        return self._patience * max(self._limit, TIMES * statistics.median(self._steps or [0.0]))

    def _watch(self) -> None:
        pause, woken = min(self._limit / 10, 5.0), time.monotonic()
        while not self._over.wait(pause):
            now, allowed = time.monotonic(), self.allowed
            stopped, woken = now - woken - pause, now
            if stopped > pause:  # this thread did not run either
                self._since = min(self._since + stopped, now)
            if now - self._since > allowed:
                self._end(allowed)
            faulthandler.dump_traceback_later(2 * PATIENCE * allowed, exit=True, file=sys.__stderr__)

    def _end(self, allowed: float) -> None:
        who = f"process {jax.process_index()} of {jax.process_count()}"
        said = f"{who}: no training step was done in {allowed:.0f} s (train.stall); stacks are in {self._path}\n"
        sys.__stderr__.write(said)
        sys.__stderr__.flush()
        faulthandler.dump_traceback(sys.__stderr__)
        with suppress(OSError), self._path.open("w") as file:
            file.write(said)
            file.flush()
            faulthandler.dump_traceback(file)
        if jax.process_count() > 1:
            time.sleep(GRACE)
        multihost.end(1)
