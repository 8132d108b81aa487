"""What the devices of a compiled program say to each other: each collective, how often, and how many bytes.

Read off the program's text (HLO): https://openxla.org/xla/operation_semantics.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from flax_transformer.frozen import frozen

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute")

_BITS = {"pred": 8, "c64": 64, "c128": 128}
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>\S+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?(?P<name>\S+) = (?P<type>\(.*?\)|\S+) (?P<op>[a-z][\w\-]*)\((?P<rest>.*)$")
_ARRAY = re.compile(r"\b(?P<type>pred|c64|c128|[a-z]{1,4}(?P<bits>\d+)\w*)\[(?P<shape>[\d,]*)\]")
_CALLS = re.compile(r"\b(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\b(?:branch_computations|called_computations)=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_LOOP = re.compile(r"\b(condition|body)=%?([\w.\-]+)")
_INDEX = re.compile(r"\bindex=(\d+)")
_CHAIN = re.compile(r'\bchannel_id=(\d+).*\bchain_id="(\d+)"')
_WORK = ("fusion", "dot", "convolution", "while", "custom-call", "conditional", "call")
_ORIGIN = re.compile(r'op_name="([^"]*)"')


@frozen
class Collective:
    """One collective of a program."""

    kind: str
    """A name in `KINDS`."""
    bytes: int
    """Of the larger side, each time: what a gather gives, what a reduction is given."""
    times: int
    """How often a step runs it; loops whose length is not known when compiling count as one turn."""
    origin: str
    """The JAX operation it is for."""
    asynchronous: bool = False
    """Whether it is begun before its result is needed, with other work between."""


@dataclass(frozen=True)
class _Instruction:
    name: str
    type: str
    op: str
    rest: str


def collectives_of(program: Any) -> list[Collective]:
    """List the collectives of a compiled program, in loops and branches too; every branch counts.

    Args:
      program: what `jax.jit(f).lower(…).compile()` gives, or its text.
    """
    programs, entry = _parse(program if isinstance(program, str) else program.as_text())
    found, reported = [], set()
    for chain, each in _walk(programs, entry, 1) if entry else ():
        # A TPU overlaps a collective with others' work in a chain of fusions, each of which holds it.
        if chain is None or chain not in reported:
            found.append(each)
        reported.add(chain)
    return found


def collective_bytes(found: list[Collective]) -> dict[str, int]:
    """Sum bytes by kind, every turn of a loop included."""
    total = dict.fromkeys(KINDS, 0)
    for each in found:
        total[each.kind] += each.bytes * each.times
    return total


def _parse(text: str) -> tuple[dict[str, list[_Instruction]], str | None]:
    """Split a module into its computations; give the name of the first one to run, too."""
    programs: dict[str, list[_Instruction]] = {}
    body, entry = [], None
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            body = programs.setdefault(head["name"], [])
            entry = head["name"] if head["entry"] else entry
        elif found := _INSTRUCTION.match(line):
            body.append(_Instruction(found["name"], found["type"], found["op"], found["rest"]))
    return programs, entry


def _walk(programs: dict, name: str, times: int) -> Iterator[tuple[tuple[str, ...] | None, Collective]]:
    """Return each collective with the chain it is in, if it is in one."""
    body = programs.get(name, [])
    for each in body:
        kind = each.op.removesuffix("-start")
        if kind in KINDS:
            chain, found = _CHAIN.search(each.rest), _collective(each, kind, body, times)
            beside = chain is not None or _overlaps(each, body)
            yield chain and chain.groups(), replace(found, asynchronous=beside)
        elif not each.op.endswith(("-done", "-update")):
            turns = _trips(programs, each) if each.op == "while" else 1
            for called in _called(each):
                yield from _merged(each, list(_walk(programs, called, times * turns)), programs[called])


def _overlaps(start: _Instruction, body: list[_Instruction]) -> bool:
    """Return whether there is work between a collective's start and end, by the schedule that the text is in."""
    if not start.op.endswith("-start") or '"is_sync":true' in start.rest:
        return False
    for each in body[body.index(start) + 1 :]:
        if each.op.endswith("-done") and start.name in _operands(each):
            return False
        if each.op in _WORK:
            return True
    return False


def _merged(caller: _Instruction, found: list, body: list[_Instruction]) -> list:
    """Call an all-reduce of which one fusion keeps a slice what it is: a reduce-scatter, as TPUs write it."""
    sliced = caller.op == "fusion" and any(each.op == "dynamic-slice" for each in body)
    kinds = {"all-reduce": "reduce-scatter"} if sliced else {}
    return [(chain, replace(each, kind=kinds.get(each.kind, each.kind))) for chain, each in found]


def _collective(each: _Instruction, kind: str, body: list[_Instruction], times: int) -> Collective:
    types = {other.name: other.type for other in body}
    given = sum(_bytes(types.get(name, "")) for name in _operands(each))
    # What an asynchronous collective starts with holds its operands beside its results.
    made = _bytes(each.type) - (given if each.op.endswith("-start") and each.type.startswith("(") else 0)
    size = given if kind == "collective-permute" else max(given, made)
    origin = _ORIGIN.search(each.rest)
    return Collective(kind=kind, bytes=size, times=times, origin=origin[1] if origin else "")


def _called(each: _Instruction) -> list[str]:
    lists = [name.strip().lstrip("%") for names in _BRANCHES.findall(each.rest) for name in names.split(",")]
    return _CALLS.findall(each.rest) + lists


def _trips(programs: dict, loop: _Instruction) -> int:
    """Count a loop's turns: as XLA knows them, else from a counter that begins at 0 and stays below a constant."""
    if known := _TRIPS.search(loop.rest):
        return int(known[1])
    inside = {where: programs.get(name, []) for where, name in _LOOP.findall(loop.rest)}
    test = next((each for each in inside.get("condition", []) if "direction=LT" in each.rest), None)
    if test is None:
        return 1
    constants = [_constant(each) for each in inside["condition"] if _constant(each) is not None]
    read = [each for each in inside["condition"] if each.op == "get-tuple-element" and each.name in _operands(test)]
    counter = _INDEX.search(read[0].rest) if read else None
    if len(constants) != 1 or counter is None:
        return 1
    return -(-constants[0] // _step(inside["body"], int(counter[1])))


def _step(body: list[_Instruction], counter: int) -> int:
    """Return by how much a loop's counter grows in a turn."""
    made = {each.name: each for each in body}
    result = _operands(body[-1])
    grown = made.get(result[counter]) if counter < len(result) else None
    if grown is None or grown.op != "add":
        return 1
    steps = [_constant(made[name]) for name in _operands(grown) if name in made]
    return next((step for step in steps if step), 1)


def _constant(each: _Instruction) -> int | None:
    integer = each.op == "constant" and re.match(r"[su]\d+\[\]", each.type)
    return int(each.rest.split(")")[0]) if integer else None


def _operands(each: _Instruction) -> list[str]:
    return re.findall(r"%([^\s,)]+)", each.rest.split(")")[0])


def _bytes(type_: str) -> int:
    """Sum the bytes of the arrays in a type."""
    total = 0
    for array in _ARRAY.finditer(type_):
        items = math.prod(int(size) for size in array["shape"].split(",") if size)
        total += -(-items * (_BITS.get(array["type"]) or int(array["bits"])) // 8)
    return total
