"""Which modules hold memory when a compiled program needs most of it, by the compiler's own plan.

XLA plans memory before anything runs: each value gets a place, and the order of instructions is fixed. So the moment of
the peak, and whose values are then alive, follow from the plan. The messages are those of `xla/service/hlo.proto`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import jax

from flax_transformer.bench.report import LINES, amount
from flax_transformer.named_scope import OUTSIDE, module_path
from flax_transformer.protobuf import Message, message, numbers, text
from flax_transformer.text_table import align

ARGUMENTS, RESULTS = "(arguments)", "(results)"
"""In place of a module: what the program is given, and what it gives in memory of its own."""
LARGE = 1_000
"""What is this many times smaller than the largest value does not decide when the peak is."""
RUNS = ("while", "call", "conditional", "async-start")
"""Instructions that run others, which stand in the program's order too."""
PASSES = ("copy", "bitcast", "copy-start", "copy-done", "transpose")
"""Instructions that hand on what another has made, and may be nameless."""
SAME, SEVERAL = ("bitcast", "get-tuple-element", "tuple"), ("tuple", "while")
"""Instructions that give what they are given, in the same place; and those with several results."""
STEPS = 16
"""Instructions that are gone back for a name."""


def memory_by_module(compiled: Any) -> dict[str, int]:
    """Return bytes on one device at a program's peak by module ("" is none), nothing where the compiler does not say.

    Args:
      compiled: what `jax.jit(…).lower(…).compile()` gave.
    """
    plan = getattr(compiled.memory_analysis(), "serialized_buffer_assignment_proto", None)
    try:
        program = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
        return _Plan(message(plan), _Program.of(message(program))).peak() if plan else {}
    except (ValueError, KeyError, IndexError, jax.errors.JaxRuntimeError):  # another version's, or another device's
        return {}


class OutOfMemoryError(RuntimeError):
    """A program needs more memory than there is; the message says which modules hold it."""


@contextmanager
def out_of_memory_explained(compiled: Any = None) -> Iterator[None]:
    """Report which modules hold the memory at its peak, of a program that runs out of it within a `with` block.

    Args:
      compiled: the program; None while it is being compiled, when only the compiler's own words are told.

    Raises:
      OutOfMemoryError: it does.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in (said := str(error)):
            raise
        held = {} if compiled is None else memory_by_module(compiled)
        rows = [(name or OUTSIDE, amount(size, "B")) for name, size in Counter(held).most_common(LINES)]
        table = f"\nat its peak, a device:\n{align(rows, 'lr')}" if rows else ""
        raise OutOfMemoryError(f"the program needs more memory than there is: {said.splitlines()[0]}{table}") from error


@dataclass(frozen=True)
class _Program:
    """Instructions by their numbers."""

    names: dict[int, str]
    kinds: dict[int, str]
    operands: dict[int, list[int]]
    roots: dict[int, int]
    """What a loop's body ends with, by the loop."""
    inputs: dict[int, int]
    """The loop whose body begins with this."""
    places: dict[int, int]
    """Which of several results an instruction picks."""
    times: dict[int, int] = field(default_factory=dict)
    """When each is done; all of a loop's body before the loop is."""

    @classmethod
    def of(cls, program: Message) -> "_Program":
        names, kinds, operands, called, last, parameters = {}, {}, {}, {}, {}, {}
        places = {}
        for computation in map(message, program[3]):
            last[computation[5][0]] = computation[6][0]
            for each in map(message, computation.get(2, [])):
                (number,) = each[35]
                names[number] = text(message(each[7][-1]).get(2)) if 7 in each else ""
                kinds[number] = text(each[2])
                operands[number] = numbers(each.get(36, []))
                called[number] = numbers(each.get(38, []))
                places[number] = each.get(13, [0])[0]
                if kinds[number] == "parameter":
                    parameters[computation[5][0]] = number
        order = {}
        for entry in map(message, message(program[7][-1])[1]):
            order[entry[1][0]] = numbers(message(entry[2][-1]).get(1, []))
        roots = {number: last[called[number][0]] for number, kind in kinds.items() if kind == "while"}
        inputs = {parameters[called[loop][0]]: loop for loop in roots}
        made = cls(names, kinds, operands, roots, inputs, places)

        def run(computation: int) -> None:
            for number in order.get(computation, []):
                if kinds.get(number) in RUNS:
                    for inner in called[number]:
                        run(inner)
                made.times[number] = len(made.times)

        run(program[6][0])
        return made

    def ends(self) -> dict[tuple[int, int], int]:
        """Return when each result of each instruction is used for the last time, under other names too."""
        ends: dict[tuple[int, int], int] = defaultdict(int)
        for number, time in reversed(self.times.items()):
            kind = self.kinds[number]
            for place, operand in enumerate(self.operands[number]):
                end = max(time, ends[number, place] if kind == "tuple" else ends[number, 0]) if kind in SAME else time
                at = operand, self.places[number] if kind == "get-tuple-element" else 0
                if kind not in SAME and self.kinds.get(operand) in SEVERAL:  # all of what it holds
                    for other in range(len(self.operands[self.roots.get(operand, operand)])):
                        ends[operand, other] = max(ends[operand, other], end)
                ends[at] = max(ends[at], end)
        return ends

    def module(self, number: int, place: int = 0) -> str:
        """Name the module whose instruction this is; of what a loop carries at a place, who makes it there."""
        names = [""]
        for _ in range(STEPS):
            number, kind = self.inputs.get(number, number), self.kinds.get(number)
            inside = self.operands.get(self.roots.get(number, number), [])
            if kind == "get-tuple-element":
                number, place = inside[0], self.places[number]
                continue
            if (number in self.roots or kind == "tuple") and place < len(inside):
                number = inside[place]
                continue
            name = self.names.get(number, "")
            names.append(_named(name))
            if name.endswith("dynamic_update_slice"):  # whose what it puts there is
                names += [_named(self.names.get(operand, "")) for operand in inside]
            if name or kind not in PASSES or not inside:
                break
            number = inside[0]
        return max(names, key=len)


def _named(name: str) -> str:
    return module_path(name.rpartition("/")[0]) if "/" in name else ""


class _Plan:
    """Where values lie, and from when to when."""

    def __init__(self, plan: Message, program: _Program):
        self._program, self._plan = program, plan
        values = [message(each) for each in plan[1]]
        made = {each.get(1, [0])[0]: message(each[3][-1]) for each in values}
        self._made = {value: place.get(4, [0])[0] for value, place in made.items()}
        self._index = {value: numbers(place.get(3, [])) or [0] for value, place in made.items()}
        seen = defaultdict(list, {value: [(self._made[value], self._index[value][0])] for value in self._made})
        self._loops = defaultdict(set)  # in which loops a value is carried, and where
        for each in map(message, plan.get(2, [])):
            value = each.get(1, [0])[0]
            for place in map(message, each.get(2, [])):
                number, index = place.get(4, [0])[0], numbers(place.get(3, []))
                seen[value].append((number, index[0] if index else 0))
                if number in program.roots and index:
                    self._loops[value].add((number, index[0]))
        ends = program.ends()
        self._span = {}
        for value, made in self._made.items():
            begin = program.times.get(made, 0)
            self._span[value] = begin, max(begin, *(max(program.times.get(at[0], 0), ends[at]) for at in seen[value]))

    def peak(self) -> dict[str, int]:
        """Add up what is alive at the peak."""
        found, places = Counter(), []
        for allocation in map(message, self._plan[3]):
            number, size = allocation.get(1, [0])[0], allocation.get(2, [0])[0]
            if allocation.get(5) or allocation.get(7):  # a parameter; what lives on after the program
                found[ARGUMENTS if allocation.get(5) else RESULTS] += size
            elif not (allocation.get(3) or allocation.get(12)):  # of a thread's stack, or a constant
                values = map(message, allocation.get(9, []))
                places += [(each[1][0], number, each.get(2, [0])[0], each.get(3, [0])[0]) for each in values]
        return {name: bytes for name, bytes in (found + self._alive(places)).most_common() if bytes}

    def _alive(self, places: list[tuple[int, int, int, int]]) -> Counter:
        """Add up, by module, the places in use when most of them are; of values that share one the newest has it.

        Args:
          places: value, allocation, offset and size.
        """
        largest = max((place[3] for place in places), default=0)
        large = [place for place in places if place[3] >= largest / LARGE]
        changes = Counter()
        for value, *_, size in large:
            begin, end = self._span[value]
            changes[begin] += size
            changes[end + 1] -= size
        times = sorted(changes)
        sums = dict(zip(times, accumulate(changes[time] for time in times), strict=True))
        most = when = 0
        for time in sorted(times, key=sums.get, reverse=True):
            if sums[time] <= most:  # what shares places counts there more than once
                break
            most, when = max((most, when), (self._covered(large, time), time))
        found = Counter()
        for value, free in self._held(places, when):
            found[self._module(value)] += free
        return found

    def _module(self, value: int) -> str:
        """Name who made a value; of one that a loop fills, who does it there, which says more."""
        places = [(self._made[value], self._index[value][0]), *self._loops[value]]
        return max((self._program.module(*place) for place in places), key=len)

    def _covered(self, places: list[tuple[int, int, int, int]], time: int) -> int:
        """Count the bytes that are in use at a time."""
        total, reached = 0, (-1, 0)
        for allocation, begin, size in sorted(place[1:] for place in places if self._lives(place[0], time)):
            begins = max((allocation, begin), reached)[1]
            total += max(0, begin + size - begins)
            reached = max(reached, (allocation, begin + size))
        return total

    def _lives(self, value: int, time: int) -> bool:
        begin, end = self._span[value]
        return begin <= time <= end

    def _held(self, places: list[tuple[int, int, int, int]], time: int) -> Iterator[tuple[int, int]]:
        """Return the values that are alive at a time, each with the bytes that no newer one has."""
        alive = [place for place in places if self._lives(place[0], time)]
        taken = defaultdict(list)
        for value, allocation, offset, size in sorted(alive, key=lambda place: -self._span[place[0]][0]):
            yield value, _free(offset, offset + size, taken[allocation])
            taken[allocation].append((offset, offset + size))


def _free(begin: int, end: int, taken: list[tuple[int, int]]) -> int:
    """Count the bytes of a range that no other has taken."""
    at, total = begin, 0
    for first, last in sorted(taken):
        total += max(0, min(first, end) - at)
        at = max(at, last)
    return total + max(0, end - at)
