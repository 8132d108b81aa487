"""How a run is asked to end: by Ctrl-C, or by SIGTERM from whoever takes the machine away. Both save first."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import jax
from jax.experimental import multihost_utils


class Interrupted(KeyboardInterrupt):
    """The run was interrupted from the keyboard and has saved its state."""


class Preempted(SystemExit):
    """The run was preempted and has saved its state: nothing is wrong, so the process may end with code 0."""

    def __init__(self, message: str):
        super().__init__(message)
        self.code = 0


class Notice:
    """Whether somebody asked the run to end, so that no step is torn.

    Several processes agree on the step to end at, by JAX's preemption service, whichever of them got the signal. That
    service listens to SIGTERM itself. A single process without it needs no more than a flag, which also works where
    JAX was used before training.
    """

    def __init__(self, say: Callable[[str], None]):
        self._say, self._reason, self._agreeing = say, None, jax.distributed.is_initialized()

    def handle(self, signum: int, frame: Any) -> None:
        """Take note of a signal; the second Ctrl-C ends the process as usual."""
        if signum == signal.SIGINT and self._reason is Interrupted:
            raise KeyboardInterrupt
        if signum == signal.SIGINT:
            self._reason = Interrupted
            self._tell("interrupted: saving after this step (Ctrl-C again to quit at once)")
            if self._agreeing:
                os.kill(os.getpid(), signal.SIGTERM)
        elif self._reason is None:
            self._reason = Preempted
            self._tell("preempted: saving after this step")

    def _tell(self, text: str) -> None:
        with suppress(RuntimeError):  # the signal came in the middle of a line that is being printed
            self._say(text)

    def due(self, step: int) -> type[BaseException] | None:
        """Return how to end after this step, if at all; to be asked once a step."""
        if self._agreeing:
            return (self._reason or Preempted) if multihost_utils.reached_preemption_sync_point(step) else None
        return self._reason


@contextmanager
def _handling(handler: Callable[[int, Any], None], *signals: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(number, signal.signal(number, handler)) for number in signals]
    try:
        yield
    finally:
        for number, old in before:
            signal.signal(number, old)


@contextmanager
def noticing(say: Callable[[str], None]) -> Iterator[Notice]:
    """Turn signals into a `Notice` while training."""
    notice = Notice(say)
    signals = (signal.SIGINT,) if jax.distributed.is_initialized() else (signal.SIGINT, signal.SIGTERM)
    with _handling(notice.handle, *signals):
        yield notice


@contextmanager
def preempted_at_once() -> Iterator[None]:
    """End the process at SIGTERM at once, with code 0: around what comes before and after training.

    Nothing is to be saved there, and no exception is raised, as code that waits for others may not pass it on. Among
    several processes there is no such thing: each notes the signal, and all end at their next training step.
    """

    def end(signum: int, frame: Any) -> None:
        os.write(2, b"preempted outside of training; the same command goes on from the last checkpoint\n")
        os._exit(0)

    with _handling(end, *([] if jax.distributed.is_initialized() else [signal.SIGTERM])):
        yield
