"""A trace of some steps, which `xprof` opens, and the operations in it that took the time, module by module.

The messages are those of `xplane.proto` and `hlo.proto`: https://github.com/openxla/xla.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from flax_transformer.frozen import frozen
from flax_transformer.named_scope import INNER, module_path
from flax_transformer.protobuf import Message, message, text

FOLDER = "profile"
"""Of a run's folder."""
OPERATIONS = 20
"""Operations that people are shown, the longest."""
RUNS = ("while", "conditional")
"""Operations that only run others, which have times of their own."""


@frozen
class Profile:
    """Which steps are traced, counted from 1, and where to."""

    first: int
    last: int
    folder: Path

    def __post_init__(self):
        if not 1 <= self.first <= self.last:
            raise ValueError(f"a profile is of steps FROM:TO, 1 ≤ FROM ≤ TO, got {self.first}:{self.last}")

    @classmethod
    def of(cls, said: str, folder: Path, steps: int | None = None) -> "Profile":
        """Read FROM:TO.

        Args:
          steps: that there are.

        Raises:
          ValueError: for what is not that, and for steps beyond these.
        """
        found = re.fullmatch(r"(\d+):(\d+)", said)
        if not found:
            raise ValueError(f"a profile is of steps FROM:TO, as in 10:12, got {said!r}")
        made = cls(first=int(found[1]), last=int(found[2]), folder=folder)
        if steps is not None and made.last > steps:
            raise ValueError(f"a profile is of steps that are taken, of which there are {steps}, got {said}")
        return made


class Tracing:
    """Trace the steps of a profile within a `with` block that says before each which one it is.

    Args:
      profile: None traces nothing.
    """

    def __init__(self, profile: Profile | None):
        self._profile, self._on, self.done = profile, False, False

    def before(self, step: int, waiting: Any) -> None:
        """Begin or end the trace where it is time.

        Args:
          step: that comes next.
          waiting: what the step before it gave, which is waited for.
        """
        if self._profile is None or self.done:
            return
        if self._on and step > self._profile.last:
            jax.block_until_ready(waiting)
            self._stop()
        elif not self._on and self._profile.first <= step <= self._profile.last:
            jax.block_until_ready(waiting)
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # calls of Python would be most of the trace
            jax.profiler.start_trace(str(self._profile.folder), profiler_options=options)
            self._on = True

    def _stop(self) -> None:
        jax.profiler.stop_trace()
        self._on, self.done = False, True

    def __enter__(self) -> "Tracing":
        return self

    def __exit__(self, *error: object) -> None:
        if self._on:
            self._stop()


@frozen
class Operation:
    """What one kind of operation took in a module, in all that was traced."""

    module: str
    """As `scope.module_path` names it; "" is none."""
    name: str
    """What JAX calls it, such as dot_general, of several that the compiler has joined the last one."""
    seconds: float
    """Of all threads and devices together."""
    count: int


def operations(folder: Path) -> list[Operation]:
    """List what took the time in the newest trace of a folder, the longest first; nothing where there is none.

    Raises:
      ValueError: a trace that cannot be read.
    """
    files = sorted(folder.glob("plugins/profile/*/*.xplane.pb"))
    newest = [file for file in files if file.parent == files[-1].parent]
    seconds, counts = Counter(), Counter()
    for file in newest:
        planes = [message(plane) for plane in message(file.read_bytes()).get(1, [])]
        programs = dict(each for plane in planes if text(plane.get(2)) == "/host:metadata" for each in _programs(plane))
        for plane in planes:
            for program, name, picoseconds in _events(plane):
                kind, said = programs.get(program, {}).get(name, ("", ""))
                if kind not in RUNS:
                    scopes, _, operation = said.rpartition("/")
                    inner = not operation or operation in INNER or "(" in operation
                    key = module_path(scopes) if scopes else "", (kind or name) if inner else operation
                    seconds[key] += picoseconds / 1e12
                    counts[key] += 1
    return [Operation(module=m, name=n, seconds=s, count=counts[m, n]) for (m, n), s in seconds.most_common()]


def _map(entries: list[bytes]) -> dict[int, Message]:
    found = (message(entry) for entry in entries)
    return {entry.get(1, [0])[0]: message(entry[2][-1]) for entry in found if 2 in entry}


def _programs(plane: Message) -> Iterator[tuple[int, dict[str, tuple[str, str]]]]:
    """Return each program's instructions, by its number: kind, and what JAX calls it with all scopes around."""
    kinds = {number: text(kind.get(2)) for number, kind in _map(plane.get(5, [])).items()}
    for entry in _map(plane.get(4, [])).values():
        stats = {kinds.get(stat.get(1, [0])[0]): stat for stat in map(message, entry.get(5, []))}
        if "Hlo Proto" not in stats or "program_id" not in stats:
            continue
        found = {}
        module = message(message(stats["Hlo Proto"][6][-1])[1][-1])
        for computation in map(message, module.get(3, [])):
            for each in map(message, computation.get(2, [])):
                said = text(message(each[7][-1]).get(2)) if 7 in each else ""
                found[text(each.get(1))] = text(each.get(2)), said
        yield _whole(stats["program_id"]), found


def _whole(stat: Message) -> int:
    return next((stat[number][-1] for number in (3, 4) if number in stat), 0)


def _events(plane: Message) -> Iterator[tuple[int, str, int]]:
    """Return the operations of a plane: program, name, and how long each took itself, in picoseconds."""
    kinds = {number: text(kind.get(2)) for number, kind in _map(plane.get(5, [])).items()}
    wanted = {name: number for number, name in kinds.items()}
    if "hlo_op" not in wanted:
        return
    for line in map(message, plane.get(3, [])):
        events = []
        for event in map(message, line.get(4, [])):
            stats = {stat.get(1, [0])[0]: stat for stat in map(message, event.get(4, []))}
            if wanted["hlo_op"] in stats:
                name = stats[wanted["hlo_op"]]
                spelled = kinds.get(name[7][-1], "") if 7 in name else text(name.get(5))
                program = _whole(stats.get(wanted.get("program_id", -1), {}))
                events.append((event.get(2, [0])[0], -event.get(3, [0])[0], program, spelled))
        yield from _own_times(events)


def _own_times(events: list[tuple[int, int, int, str]]) -> Iterator[tuple[int, str, int]]:
    """Take from each event of a line what others within it took.

    Args:
      events: beginning, length below zero, program, name.
    """
    around: list[list[Any]] = []
    for begin, length, program, name in sorted(events):
        while around and around[-1][0] <= begin:
            yield tuple(around.pop()[1:])
        if around:
            around[-1][3] += length
        around.append([begin - length, program, name, -length])
    for each in reversed(around):
        yield tuple(each[1:])
