"""Several processes here, as one run."""

import contextlib
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque

from flax_transformer.frozen import frozen

GRACE = 5
"""Seconds that processes have to end by themselves after one of them has failed."""

LAST = 40
"""Lines of the process that failed first that are shown again at the end."""


@frozen
class Local:
    """An experiment to run here."""

    experiment: str
    workdir: str | None = None
    """None: the experiment's own."""
    options: tuple[str, ...] = ()
    processes: int = 1

    def __post_init__(self):
        if self.processes < 1:
            raise ValueError(f"processes must be at least 1, got {self.processes}")
        if not os.path.isfile(self.experiment):
            raise ValueError(f"an experiment must be a Python file, there is none at {self.experiment}")
        if self.workdir and "://" in self.workdir:
            raise ValueError(f"a run here must have a folder as its WORKDIR, got {self.workdir!r}")

    @property
    def command(self) -> tuple[str, ...]:
        """What every process runs."""
        workdir = ("--workdir", self.workdir) if self.workdir else ()
        return (sys.executable, self.experiment, *self.options, *workdir)


def variables(local: Local, port: int) -> list[dict[str, str]]:
    """Return the environment variables of each process, which name the others."""
    from flax_transformer.parallel.multihost import VARIABLES  # here, because JAX comes with it

    shared = {VARIABLES["coordinator"]: f"127.0.0.1:{port}", VARIABLES["processes"]: str(local.processes)}
    return [shared | {VARIABLES["index"]: str(index)} for index in range(local.processes)]


def local_lines(local: Local) -> str:
    """Write the run as lines to paste into a shell."""
    command = shlex.join(local.command)
    if local.processes == 1:
        return f"{command}\n"
    settings = (" ".join(f"{name}={value}" for name, value in one.items()) for one in variables(local, free_port()))
    return "".join(f"{setting} {command} &\n" for setting in settings) + "wait\n"


def run_local(local: Local) -> int:
    """Run the processes until all have ended, each line that they print marked by the number of its process.

    Once one fails, the others are ended. Ctrl-C and SIGTERM are passed on, on which training saves and ends.

    Returns:
      0, or the exit code of the process that failed first; 130 after Ctrl-C.
    """
    if local.processes == 1:
        members = [subprocess.Popen(local.command, start_new_session=True)]
        with _passing_on(members):
            return _code(members[0].wait())
    members, readers, last = [], [], [deque(maxlen=LAST) for _ in range(local.processes)]
    with _passing_on(members):
        for index, setting in enumerate(variables(local, free_port())):
            member = subprocess.Popen(
                local.command,
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | setting,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that Ctrl-C reaches it once, from here
            )
            members.append(member)
            reader = threading.Thread(target=_show, args=(index, member.stdout, last[index]), daemon=True)
            reader.start()
            readers.append(reader)
        failed = _wait(members)
    for reader in readers:
        reader.join()
    if failed is None:
        return 0
    code = _code(members[failed].returncode)
    if code != 130:
        print(f"launch: process {failed} failed first, with exit code {code}; its last lines:", file=sys.stderr)
        print("".join(last[failed]), end="", file=sys.stderr, flush=True)
    return code


def free_port() -> int:
    """Find a port of the loopback interface that nobody listens on.

    The process that will listen there takes seconds to start, so it is none that a connection may be given meanwhile:
    those begin at 32,768 on Linux, unless net.ipv4.ip_local_port_range is set to others.
    """
    ports = random.SystemRandom().sample(range(20_000, 32_000), 100)
    for port in ports:
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port
    raise OSError(f"none of 100 ports tried on 127.0.0.1 is free, from {min(ports)} to {max(ports)}")


def _show(index: int, stream, last: deque[str]) -> None:
    for line in stream:
        text = line.decode(errors="replace")
        last.append(text)
        sys.stdout.write(f"[{index}] {text}" if text.endswith("\n") else f"[{index}] {text}\n")
        sys.stdout.flush()


def _wait(members: list[subprocess.Popen]) -> int | None:
    """Wait for all, but not for long after one has failed; tell which failed first."""
    failed = None
    while failed is None and any(member.poll() is None for member in members):
        time.sleep(0.05)
        failed = next((index for index, member in enumerate(members) if member.poll()), None)
    limit = time.monotonic() + GRACE
    for member in members:
        with contextlib.suppress(subprocess.TimeoutExpired):
            member.wait(max(limit - time.monotonic(), 0) if failed is not None else None)
        if member.poll() is None:
            member.kill()
            member.wait()
    return (
        next((index for index, member in enumerate(members) if member.returncode), None) if failed is None else failed
    )


def _code(returned: int) -> int:
    """Return the exit code that a shell would."""
    return returned if returned >= 0 else 128 - returned


@contextlib.contextmanager
def _passing_on(members: list[subprocess.Popen]):
    """Pass Ctrl-C and SIGTERM on to the processes, as often as they come."""

    def send(number: int, frame: object) -> None:
        for member in members:
            if member.poll() is None:
                member.send_signal(number)

    before = {number: signal.signal(number, send) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
