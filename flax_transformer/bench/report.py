"""A benchmark's record as a table for people."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from flax_transformer.bench.environment import describe
from flax_transformer.named_scope import OUTSIDE
from flax_transformer.text_table import align


def seconds(value: float | int | None) -> str:
    """Spell a time in the unit that suits it.

    >>> seconds(0.00321), seconds(12.345), seconds(0.000045)
    ('3.21 ms', '12.3 s', '45.0 µs')
    """
    if value is None:
        return "–"
    for size, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= size or unit == "µs":
            return f"{three(value / size)} {unit}"


def amount(value: float | int | None, unit: str = "") -> str:
    """Spell a large number with a decimal prefix.

    >>> amount(1_234_000, "B"), amount(12)
    ('1.23 MB', '12.0')
    """
    if value is None:
        return "–"
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{three(value / size)} {prefix}{unit}"
    return f"{three(value)} {unit}".rstrip()


def three(value: float | int) -> str:
    """Spell a number with three digits, or all before the point."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _percent(value: float | int | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


LINES = 12
"""Modules told at most."""
AGAIN = "  computed again"
COUNTED = "products and convolutions of the program, causal attention in full, nothing that is computed again"
ROWS: tuple[tuple[str, Callable[[dict], str]], ...] = (
    ("step, median", lambda p: seconds(p["step"]["median"])),
    ("  from 5 %", lambda p: seconds(p["step"]["low"])),
    ("  to 95 %", lambda p: seconds(p["step"]["high"])),
    ("{unit} a second", lambda p: "–" if p["items"] is None else f"{p['items_per_second']:,.0f}"),
    ("model FLOPs a step", lambda p: amount(p["flops"])),
    (AGAIN, lambda p: amount(p["flops_again"])),
    ("FLOP/s", lambda p: amount(p["flops_per_second"])),
    ("MFU", lambda p: _percent(p["mfu"])),
    ("memory a device, peak", lambda p: amount(p["peak_bytes"], "B")),
    ("  of it temporary", lambda p: amount(p["temporary_bytes"], "B")),
    ("trace", lambda p: seconds(p["trace"])),
    ("lower", lambda p: seconds(p["lower"])),
    ("compile", lambda p: seconds(p["compile"])),
    ("  from the cache", lambda p: seconds(p["compile_cached"])),
    ("first run", lambda p: seconds(p["first"])),
    ("call returns after", lambda p: seconds(p["dispatch"]["median"])),
    ("cost of a call", lambda p: seconds(p["overhead"]["median"])),
    ("recompilations", lambda p: str(p["recompiles"])),
)


def render(record: dict[str, Any]) -> str:
    """Lay a record out as text, with what its words mean."""
    target, programs = record["target"], record["programs"]
    shape = ", ".join(f"{name} {size:,}" for name, size in target["shape"].items())
    mesh = " × ".join(f"{axis} {size}" for axis, size in target["mesh"].items() if size > 1)
    one = next(iter(programs.values()))
    rows = [[name.format(**one), *(spell(program) for program in programs.values())] for name, spell in ROWS]
    rows = [row for row in rows if row[0] != AGAIN or any(program["flops_again"] for program in programs.values())]
    said = [f"  {name}: {cause}" for name, program in programs.items() for cause in program["causes"]]
    causes = ["", "FAULT: compiled again after the first run, since", *said] if said else []
    leaves = ", ".join(str(program["leaves"]) for program in programs.values())
    parameters = "" if target["parameters"] is None else f"{target['parameters']:,} parameters, "
    notes = [f"  {name}: {note}" for name, program in programs.items() for note in program["flops_notes"]]
    program_notes = [f"{name}: {note}" for name, program in programs.items() for note in program["notes"]]
    variables = record["environment"]["variables"]
    lines = [
        "",
        f"{target['name']}   {parameters}{target['dtype']}, {shape}",
        f"{describe(record['environment'])}{f', mesh {mesh}' if mesh else ''}",
        *([" ".join(f"{name}={value}" for name, value in variables.items())] if variables else []),
        "",
        align([["", *programs], *rows], "lr"),
        "",
        f"step: {one['steps']} of them; training with the host one step ahead, the others one call at a time",
        f"FLOPs: {COUNTED}",
        *notes,
        f"MFU: FLOP/s as a share of {amount(record['peak']['flops'], 'FLOP/s')} ({record['peak']['source']})",
        f"cost of a call: a program that does nothing, given the same {leaves} arrays",
        *program_notes,
        *_by_module(programs),
        *(line for name, program in programs.items() for line in _operations(name, program)),
        *causes,
    ]
    return "\n".join(lines)


def _by_module(programs: dict[str, dict]) -> list[str]:
    """Lay out, module by module, the FLOPs of a step and the memory at its peak; nothing where no module is named."""
    kinds = (("FLOPs", "flops_modules", ""), ("memory", "memory_modules", "B"))
    columns = [
        (f"{name} {word}", each.get(key) or {}, unit) for name, each in programs.items() for word, key, unit in kinds
    ]
    columns = [column for column in columns if any(map(_is_module, column[1]))]
    if not columns:
        return []
    counts_by_module = Counter()
    for _, found, _ in columns:
        for module, value in found.items():
            counts_by_module[module] += value / max(1, sum(found.values()))
    modules = [module for module, _ in counts_by_module.most_common(LINES)]
    rows = []
    for module in modules:
        cells = [_share(found, found.get(module, 0), unit) for _, found, unit in columns]
        rows.append([module or OUTSIDE, *cells])
    if rest := [module for module in counts_by_module if module not in modules]:
        rows.append(
            [f"{len(rest)} more", *(_share(found, sum(found.get(m, 0) for m in rest), u) for _, found, u in columns)]
        )
    head = ["by module", *(name for name, *_ in columns)]
    return [
        "",
        align([head, *rows], "lr"),
        "memory: alive at the peak, by the compiler's plan; derivatives are their module's",
    ]


def _operations(name: str, program: dict) -> list[str]:
    """Lay out what a program's trace says took the time; nothing without one."""
    found = program.get("operations") or []
    rows = [
        (each["name"], each["module"] or OUTSIDE, seconds(each["seconds"]), f"{each['count']:,}")
        for each in found[:LINES]
    ]
    return ["", align([(f"{name}, traced", "module", "in all", "times"), *rows], "llr")] if rows else []


def _is_module(name: str) -> bool:
    return bool(name) and not name.startswith("(")


def _share(found: dict[str, int], value: int, unit: str) -> str:
    return f"{amount(value, unit)} {100 * value / max(1, sum(found.values())):3.0f} %" if value else "–"
