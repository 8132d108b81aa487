"""What the devices of a compiled program say to each other: each collective, how often, and how many bytes.

Read off the program's text (HLO): https://openxla.org/xla/operation_semantics.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from flax_transformer.frozen import frozen
from flax_transformer.parallel.hlo import Instruction, array_bytes, called_by, loop_trips, operands_of, parse_hlo

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute")

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


def collectives_of(program: Any) -> list[Collective]:
    """List the collectives of a compiled program, in loops too; of branches those of the one that sends most.

    Args:
      program: what `jax.jit(f).lower(…).compile()` gives, or its text.
    """
    programs, entry = parse_hlo(program if isinstance(program, str) else program.as_text())
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
            turns = loop_trips(programs, each) if each.op == "while" else 1
            parts = [
                _merged(each, list(_walk(programs, called, times * turns)), programs[called])
                for called in called_by(each)
            ]
            for part in [max(parts, key=_sent)] if each.op == "conditional" else parts:
                yield from part


def _sent(part: list) -> int:
    return sum(each.bytes * each.times for _, each in part)


def _overlaps(start: Instruction, body: list[Instruction]) -> bool:
    """Return whether there is work between a collective's start and end, by the schedule that the text is in."""
    if not start.op.endswith("-start") or '"is_sync":true' in start.rest:
        return False
    for each in body[body.index(start) + 1 :]:
        if each.op.endswith("-done") and start.name in operands_of(each):
            return False
        if each.op in _WORK:
            return True
    return False


def _merged(caller: Instruction, found: list, body: list[Instruction]) -> list:
    """Call an all-reduce of which one fusion keeps a slice what it is: a reduce-scatter, as TPUs write it."""
    sliced = caller.op == "fusion" and any(each.op == "dynamic-slice" for each in body)
    kinds = {"all-reduce": "reduce-scatter"} if sliced else {}
    return [(chain, replace(each, kind=kinds.get(each.kind, each.kind))) for chain, each in found]


def _collective(each: Instruction, kind: str, body: list[Instruction], times: int) -> Collective:
    types = {other.name: other.type for other in body}
    given = sum(array_bytes(types.get(name, "")) for name in operands_of(each))
    # What an asynchronous collective starts with holds its operands beside its results.
    made = array_bytes(each.type) - (given if each.op.endswith("-start") and each.type.startswith("(") else 0)
    size = given if kind == "collective-permute" else max(given, made)
    origin = _ORIGIN.search(each.rest)
    return Collective(kind=kind, bytes=size, times=times, origin=origin[1] if origin else "")
