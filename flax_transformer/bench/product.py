"""The products of a compiled program: how many, of what numbers, and how many FLOPs they are.

Read off the program's text (HLO), as `parallel.collectives` does. A product of whole numbers is one whose sums are
int32, of float8 one whose operands are; kernels that others wrote (Pallas, cuDNN) are not looked into.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from flax_transformer.frozen import frozen
from flax_transformer.parallel.hlo import Instruction, array_type, called_by, loop_trips, operands_of, parse_hlo

KINDS = {"int8": ("s32",), "float8_e4m3fn": ("f8e4m3fn", "f8e4m3", "f8e5m2")}
"""Types of few bits: of sums that are whole, of operands that are floats."""
NAMES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}
GEMMS = ("__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8")
"""Custom calls that are products."""

_WINDOW = re.compile(r"window=\{([^}]*)\}")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_TARGET = re.compile(r'custom_call_target="([^"]+)"')


@frozen
class Products:
    """All products of one kind of numbers, on one device."""

    kind: str
    """What is multiplied: `int8`, `float8_e4m3fn`, or floats by their name."""
    count: int
    """In the program's text: one in a loop counts once."""
    flops: int
    """A call, turns of loops included."""


def products_of(program: Any) -> tuple[Products, ...]:
    """Sum up the products of a compiled program by what is multiplied, the most FLOPs first; of branches the costliest.

    Args:
      program: what `jax.jit(f).lower(…).compile()` gives, or its text.
    """
    programs, entry = parse_hlo(program if isinstance(program, str) else program.as_text())
    counts: dict[str, set[str]] = {}
    flops: dict[str, int] = {}
    for name, kind, size in _walk(programs, entry, 1) if entry else ():
        counts.setdefault(kind, set()).add(name)
        flops[kind] = flops.get(kind, 0) + size
    found = [Products(kind=kind, count=len(names), flops=flops[kind]) for kind, names in counts.items()]
    return tuple(sorted(found, key=lambda each: -each.flops))


def _walk(programs: Mapping[str, list[Instruction]], name: str, times: int) -> Iterator[tuple[str, str, int]]:
    """Return each product's own name, what is multiplied, and its FLOPs."""
    body = programs.get(name, [])
    types = {each.name: each.type for each in body}
    for each in body:
        size = _flops(each, types)
        if size is not None:
            yield f"{name}.{each.name}", _kind(each, types), size * times
        elif not each.op.endswith(("-done", "-update")):
            turns = loop_trips(programs, each) if each.op == "while" else 1
            parts = [list(_walk(programs, called, times * turns)) for called in called_by(each)]
            for part in [max(parts, key=_total)] if each.op == "conditional" else parts:
                yield from part


def _total(part: list[tuple[str, str, int]]) -> int:
    return sum(size for _, _, size in part)


def _kind(each: Instruction, types: Mapping[str, str]) -> str:
    made, _ = array_type(each.type)
    given = [found[0] for name in operands_of(each)[:2] if (found := array_type(types.get(name, "")))]
    if made in KINDS["int8"]:
        return "int8"
    if given and all(kind in KINDS["float8_e4m3fn"] for kind in given):
        return "float8_e4m3fn"
    widths = {kind: int(re.search(r"\d+", kind)[0]) for kind in given if kind in NAMES}
    widest = max(widths, key=widths.get, default=made)
    return NAMES.get(widest, widest)


def _flops(each: Instruction, types: Mapping[str, str]) -> int | None:
    """Count a product's FLOPs; None for what is none."""
    if each.op not in ("dot", "convolution", "custom-call"):
        return None
    shapes = [found[1] for name in operands_of(each)[:2] if (found := array_type(types.get(name, "")))]
    if len(shapes) < 2:
        return None
    made = array_type(each.type)
    if each.op == "convolution":
        return _convolution(each, *shapes, made[1])
    if each.op == "custom-call" and ((target := _TARGET.search(each.rest)) is None or target[1] not in GEMMS):
        return None
    shared = re.search(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)', each.rest)
    axes = [int(axis) for axis in re.findall(r"\d+", shared[1])] if shared else []
    return 2 * math.prod(made[1]) * math.prod(shapes[0][axis] for axis in axes)


def _convolution(each: Instruction, given: tuple, kernel: tuple, made: tuple) -> int | None:
    """Count a convolution: pairs of a position in the result and one in the kernel that meet where there is input.

    TPUs write products of several axes as convolutions too, over windows that are dilated or padded.
    """
    labels = _LABELS.search(each.rest)
    if labels is None:
        return None
    shapes = zip(labels.groups(), (given, kernel, made), strict=True)
    sides = [dict(zip(names, shape, strict=True)) for names, shape in shapes]
    _, right, out = sides
    window = _WINDOW.search(each.rest)
    about = dict(part.split("=") for part in window[1].split()) if window else {}
    count = 2 * out["b"] * out["f"] * right["i"]
    for axis in range(len(given) - 2):
        here = {name: part.split("x")[axis] for name, part in about.items()}
        count *= _meetings(*(side[str(axis)] for side in sides), here)
    return count


def _meetings(size: int, width: int, places: int, about: Mapping[str, str]) -> int:
    """Count along one axis of a window how often a place in the kernel meets input."""
    before = int(about.get("pad", "0_0").split("_")[0])
    stride, spread, step = (int(about.get(name, "1")) for name in ("stride", "lhs_dilate", "rhs_dilate"))
    found = 0
    for place in range(places):
        for k in range(width):
            at = place * stride - before + k * step
            found += 0 <= at <= (size - 1) * spread and at % spread == 0
    return found
