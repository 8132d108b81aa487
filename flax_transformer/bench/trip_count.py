"""How often a `while` loop turns, where its jaxpr says so: a counter grows by a constant to a limit that is known."""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax.extend import core

FOLD: dict[str, Callable[..., int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "max": max,
    "min": min,
    "clamp": lambda low, x, high: min(max(low, x), high),
    "convert_element_type": lambda x: x,
    "copy": lambda x: x,
}
"""What is computed of whole numbers while a program is walked."""


def fold(name: str, known: Sequence[int | None]) -> list[int] | None:
    """Apply a primitive to whole numbers; None where one is not known or the primitive is another."""
    if name not in FOLD or not all(isinstance(value, int) for value in known):
        return None
    return [FOLD[name](*known)]


def turns(eqn: Any, known: Sequence[int | None]) -> tuple[int | None, bool]:
    """Return how often a loop turns at the most, None where nothing tells, and whether it turns as often in any case.

    Args:
      eqn: an equation of `while`.
      known: its inputs, as far as they are whole numbers that are known.
    """
    limits = [_until(eqn, known, test) for test in _conjuncts(eqn)]
    found = [limit for limit in limits if limit is not None]
    return (min(found) if found else None), len(found) == len(limits)


def after_loop(eqn: Any, known: Sequence[int | None], number: int | None) -> list[int | None]:
    """Return what is known of a loop's results, if it ends when its counter does: counters, and what never changes."""
    if number is None:
        return [None] * len(eqn.outvars)
    start = known[_constants(eqn) :]
    steps = [_step(eqn, place) for place in range(len(start))]
    return [
        None if first is None or step is None else first + number * step
        for first, step in zip(start, steps, strict=True)
    ]


def _constants(eqn: Any) -> int:
    return eqn.params["cond_nconsts"] + eqn.params["body_nconsts"]


def _conjuncts(eqn: Any) -> list[Any]:
    """List the equations that must all be true for the loop to go on; None for one that is none."""
    jaxpr = eqn.params["cond_jaxpr"].jaxpr
    made = {var: each for each in jaxpr.eqns for var in each.outvars}

    def parts(atom: Any) -> Iterator[Any]:
        test = None if isinstance(atom, core.Literal) else made.get(atom)
        if test is not None and test.primitive.name == "and":
            for one in test.invars:
                yield from parts(one)
        else:
            yield test

    return list(parts(jaxpr.outvars[0]))


def _until(eqn: Any, known: Sequence[int | None], test: Any) -> int | None:
    """Return how often a loop turns until `counter < limit` is false."""
    if test is None or test.primitive.name not in ("lt", "le"):
        return None
    inputs, first = eqn.params["cond_jaxpr"].jaxpr.invars, eqn.params["cond_nconsts"]

    def start_and_step(atom: Any) -> tuple[int | None, int | None]:
        if isinstance(atom, core.Literal):
            return int(atom.val), 0
        if atom not in inputs:
            return None, None
        place = inputs.index(atom)
        if place < first:
            return known[place], 0
        return known[place + eqn.params["body_nconsts"]], _step(eqn, place - first)

    (start, by), (limit, moves) = map(start_and_step, test.invars)
    if None in (start, by, limit) or moves != 0 or by < 1:
        return None
    return max(0, math.ceil((limit - start + (test.primitive.name == "le")) / by))


def _step(eqn: Any, place: int) -> int | None:
    """Return by how much a carried value grows in a turn; None where it is not by a constant."""
    jaxpr = eqn.params["body_jaxpr"].jaxpr
    before, after = jaxpr.invars[eqn.params["body_nconsts"] + place], jaxpr.outvars[place]
    if after is before:
        return 0
    made = next((each for each in jaxpr.eqns if after in each.outvars), None)
    if made is None or made.primitive.name != "add" or made.invars[0] is not before:
        return None
    more = made.invars[1]
    return int(more.val) if isinstance(more, core.Literal) else None
