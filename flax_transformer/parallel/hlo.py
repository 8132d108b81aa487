"""The text of a compiled program (HLO), taken apart: its computations, what calls what, how often, and array types.

https://openxla.org/xla/operation_semantics
"""

import math
import re
from dataclasses import dataclass

_BITS = {"pred": 8, "c64": 64, "c128": 128}
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>\S+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?(?P<name>\S+) = (?P<type>\(.*?\)|\S+) (?P<op>[a-z][\w\-]*)\((?P<rest>.*)$")
_ARRAY = re.compile(r"\b(?P<type>pred|c64|c128|[a-z]{1,4}(?P<bits>\d+)\w*)\[(?P<shape>[\d,]*)\]")
_CALLS = re.compile(r"\b(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\b(?:branch_computations|called_computations)=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_LOOP = re.compile(r"\b(condition|body)=%?([\w.\-]+)")
_INDEX = re.compile(r"\bindex=(\d+)")


@dataclass(frozen=True)
class Instruction:
    """A line of a computation."""

    name: str
    type: str
    """Of the result, with its layout; several in parentheses."""
    op: str
    rest: str
    """Operands and attributes."""


def parse_hlo(text: str) -> tuple[dict[str, list[Instruction]], str | None]:
    """Split a module into its computations; give the name of the first one to run, too."""
    programs: dict[str, list[Instruction]] = {}
    body, entry = [], None
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            body = programs.setdefault(head["name"], [])
            entry = head["name"] if head["entry"] else entry
        elif found := _INSTRUCTION.match(line):
            body.append(Instruction(found["name"], found["type"], found["op"], found["rest"]))
    return programs, entry


def called_by(each: Instruction) -> list[str]:
    """Name the computations that an instruction runs."""
    lists = [name.strip().lstrip("%") for names in _BRANCHES.findall(each.rest) for name in names.split(",")]
    return _CALLS.findall(each.rest) + lists


def loop_trips(programs: dict, loop: Instruction) -> int:
    """Count a loop's turns: as XLA knows them, else from a counter that begins at 0 and stays below a constant."""
    if known := _TRIPS.search(loop.rest):
        return int(known[1])
    inside = {where: programs.get(name, []) for where, name in _LOOP.findall(loop.rest)}
    test = next((each for each in inside.get("condition", []) if "direction=LT" in each.rest), None)
    if test is None:
        return 1
    constants = [_constant(each) for each in inside["condition"] if _constant(each) is not None]
    read = [each for each in inside["condition"] if each.op == "get-tuple-element" and each.name in operands_of(test)]
    counter = _INDEX.search(read[0].rest) if read else None
    if len(constants) != 1 or counter is None:
        return 1
    return -(-constants[0] // _step(inside["body"], int(counter[1])))


def _step(body: list[Instruction], counter: int) -> int:
    """Return by how much a loop's counter grows in a turn."""
    made = {each.name: each for each in body}
    result = operands_of(body[-1])
    grown = made.get(result[counter]) if counter < len(result) else None
    if grown is None or grown.op != "add":
        return 1
    steps = [_constant(made[name]) for name in operands_of(grown) if name in made]
    return next((step for step in steps if step), 1)


def _constant(each: Instruction) -> int | None:
    integer = each.op == "constant" and re.match(r"[su]\d+\[\]", each.type)
    return int(each.rest.split(")")[0]) if integer else None


def operands_of(each: Instruction) -> list[str]:
    """Name the instructions whose results an instruction takes."""
    return re.findall(r"%([^\s,)]+)", each.rest.split(")")[0])


def array_type(type_: str) -> tuple[str, tuple[int, ...]] | None:
    """Return element type and shape of the first array in a type.

    >>> array_type("(s32[8,4096]{1,0:T(8,128)}, s8[16])")
    ('s32', (8, 4096))
    """
    found = _ARRAY.search(type_)
    return found and (found["type"], tuple(int(size) for size in found["shape"].split(",") if size))


def array_bytes(type_: str) -> int:
    """Sum the bytes of the arrays in a type."""
    total = 0
    for array in _ARRAY.finditer(type_):
        items = math.prod(int(size) for size in array["shape"].split(",") if size)
        total += -(-items * (_BITS.get(array["type"]) or int(array["bits"])) // 8)
    return total
