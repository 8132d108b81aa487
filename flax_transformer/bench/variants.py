"""Attention variants beside exact attention: error, memory and time by length, forward and backward.

Memory is what the compiler plans beside arguments and results (`memory_analysis`), so that it is known, too, for what
would not fit. The error is that of `QUERIES` places against softmax attention, as a share of its norm.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flax_transformer.bench.environment import describe, environment
from flax_transformer.bench.report import amount, seconds
from flax_transformer.bench.timing import time_calls
from flax_transformer.listing import listed
from flax_transformer.ops import Mask, attention
from flax_transformer.ops.attention import VARIANTS, Call
from flax_transformer.text_table import align

EXACT = ("xla", "blockwise")
"""Backends that are exact: with all weights in memory, and without."""
QUERIES = 256
"""At so many places, evenly spread, variants are compared with exact attention."""
POWERS = {"xla": 2, "blockwise": 2, "sparsemax": 2, "entmax": 2, "strided": 1.5, "fixed": 1.5}
"""With which power of the length time grows, where it is not 1."""
PARTS = ("forward", "forward_backward")


@dataclass(frozen=True)
class HeadCounts:
    """Of queries, keys and values."""

    batch: int = 1
    heads: int = 4
    width: int = 64
    causal: bool = False


@dataclass(frozen=True)
class Limits:
    """What a measurement may take."""

    room: float = 8e9
    """Bytes that a program may take; what needs more is compiled, and not run."""
    patience: float = 5.0
    """Seconds that a call may take; what would take more, by the time of a shorter length, is not run."""
    budget: float = 0.5
    """Seconds spent on each measurement, about."""


def bench_variants(
    lengths: tuple[int, ...],
    *,
    names: tuple[str, ...] = (*EXACT, *VARIANTS),
    size: HeadCounts = HeadCounts(),
    limits: Limits = Limits(),
    trained: tuple[Array, Array, Array] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Measure each variant at each length, on random heads; errors on trained ones beside, where they are given.

    Args:
      trained: queries, keys and values of trained heads; errors are those of their first positions, as many as each
        length has, and of all.
      say: told what is measured.

    Raises:
      ValueError: for shapes or names that cannot be.
    """
    shape = asdict(size)
    sizes = [*shape.items(), *(("length", each) for each in lengths)]
    for name, value in sizes:
        if name != "causal" and value < 1:
            raise ValueError(f"{name} must be a positive number, got {value}")
    if unknown := [name for name in names if name not in (*EXACT, *VARIANTS)]:
        raise ValueError(f"variants are {', '.join((*EXACT, *VARIANTS))}, got {listed(unknown)}")
    mask, results = Mask(causal=True) if size.causal else None, []
    for length in sorted(lengths):
        keys = jax.random.split(jax.random.key(0), 3)
        heads_of = [jax.random.normal(key, (size.batch, length, size.heads, size.width)) for key in keys]
        for name in names:
            say(f"{length} {name}")
            before = {each["name"]: each for each in results if each["length"] < length}.get(name)
            results.append({"length": length, "name": name, **_measure(name, heads_of, mask, limits, before)})
    return {
        "target": {"name": "attention variants", "dtype": "float32", "shape": shape},
        "environment": environment(),
        "options": {name: str(VARIANTS[name]) for name in names if name in VARIANTS},
        "room": limits.room,
        "patience": limits.patience,
        "results": results,
        "crossings": {name: crossing(results, name) for name in names if name in VARIANTS},
        "trained": [] if trained is None else _trained(lengths, names, trained, mask, limits, say),
    }


def _trained(
    lengths: tuple[int, ...], names: tuple[str, ...], qkv: tuple, mask: Mask | None, limits: Limits, say: Callable
) -> list[dict[str, Any]]:
    whole, found = qkv[0].shape[1], []
    for length in sorted({*(each for each in lengths if each < whole), whole}):
        for name in names:
            say(f"{length} {name}, trained heads")
            error = _error(name, [each[:, :length] for each in qkv], mask, limits)
            found.append({"length": length, "name": name, **error})
    return found


def crossing(results: list[dict[str, Any]], name: str, exact: str = "xla") -> int | None:
    """Return the length from which on a variant takes less memory than exact attention, forward and backward.

    >>> two = lambda length, a, b: [{"length": length, "name": name, "forward_backward": {"temporaries": bytes_}}
    ...                             for name, bytes_ in (("xla", a), ("local", b))]
    >>> crossing(two(512, 4, 5) + two(1024, 16, 10) + two(2048, 64, 20), "local")
    1024
    """
    found = {(each["name"], each["length"]): each.get("forward_backward") for each in results}
    below = None
    for length in sorted({each["length"] for each in results}, reverse=True):
        mine, theirs = found.get((name, length)), found.get((exact, length))
        if not mine or not theirs or mine["temporaries"] >= theirs["temporaries"]:
            break
        below = length
    return below


def _function(name: str) -> Callable[..., Array]:
    if name in VARIANTS:
        return VARIANTS[name]
    return lambda q, k, v, mask=None: attention(q, k, v, mask, backend=name)


def _refuses(name: str, qkv: list[Array], mask: Mask | None) -> str | None:
    return VARIANTS[name].refuses(Call(*qkv, mask)) if name in VARIANTS else None


def _measure(name: str, qkv: list[Array], mask: Mask | None, limits: Limits, before: dict | None) -> dict[str, Any]:
    if reason := _refuses(name, qkv, mask):
        return {"reason": reason}
    attend = _function(name)
    before = None if before is None or "reason" in before else before

    def forward(q: Array, k: Array, v: Array) -> Array:
        return attend(q, k, v, mask)

    def both(q: Array, k: Array, v: Array) -> tuple:
        out, pull = jax.vjp(forward, q, k, v)
        return out, pull(out)

    found, length = {}, qkv[0].shape[1]
    for part, function in zip(PARTS, (forward, both), strict=True):
        compiled = jax.jit(function).lower(*qkv).compile()
        found[part] = {"temporaries": compiled.memory_analysis().temp_size_in_bytes}
        earlier = (before or {}).get(part, {})
        if reason := _no_room(compiled, limits):
            found[part]["reason"] = reason
        elif before and (
            "time" not in earlier or earlier["time"]["median"] * _growth(name, length, before) > limits.patience
        ):
            found[part]["reason"] = f"a call would take more than about {seconds(limits.patience)}"
        else:
            found[part]["time"] = asdict(time_calls(compiled, *qkv, seconds=limits.budget, least=3))
    if "time" in found["forward"]:
        found["error"] = relative_error(attend, *qkv, mask)
    return found


def _no_room(compiled: Any, limits: Limits) -> str | None:
    """Say why a program does not fit, if it does not."""
    memory = compiled.memory_analysis()
    whole = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return f"it needs {amount(whole, 'B')}, of {amount(limits.room, 'B')}" if whole > limits.room else None


def _growth(name: str, length: int, before: dict[str, Any]) -> float:
    """Return how many times as long a longer text takes, about."""
    return (length / before["length"]) ** POWERS.get(name, 1)


def relative_error(
    attend: Callable[..., Array],
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T N H"],
    v: Float[Array, "B T N H"],
    mask: Mask | None,
) -> float:
    """Return how far a variant is from softmax attention, at places evenly spread, as a share of its norm."""
    places = np.linspace(0, q.shape[1] - 1, min(QUERIES, q.shape[1])).astype(int)
    seen = None if mask is None else Mask(dense=jnp.arange(k.shape[1]) <= places[:, None])
    exact = jax.jit(lambda q, k, v: attention(q, k, v, seen, backend="xla"))(q[:, places], k, v)
    ours = jax.jit(attend)(q, k, v, mask)[:, places]
    return float(jnp.linalg.norm(ours - exact) / jnp.linalg.norm(exact))


def _error(name: str, qkv: list[Array], mask: Mask | None, limits: Limits) -> dict[str, Any]:
    attend = _function(name)
    if reason := _refuses(name, qkv, mask):
        return {"reason": reason}
    if reason := _no_room(jax.jit(lambda q, k, v: attend(q, k, v, mask)).lower(*qkv).compile(), limits):
        return {"reason": reason}
    return {"error": relative_error(attend, *qkv, mask)}


def render_variants(record: dict[str, Any]) -> str:
    """Lay the record out as text: a table, what was not run and why, and where each variant crosses exact attention."""
    shape, rows, reasons = record["target"]["shape"], [], {}
    for each in record["results"]:
        row = [str(each["length"]), each["name"], f"{each['error']:.3f}" if "error" in each else "–"]
        if "reason" in each:
            reasons.setdefault(f"{each['name']}: {each['reason']}", []).append(each["length"])
            continue
        for part in PARTS:
            row += [amount(each[part]["temporaries"], "B"), seconds(each[part].get("time", {}).get("median"))]
            if "reason" in each[part]:
                reasons.setdefault(f"{each['name']}, {part.replace('_', ' and ')}: {each[part]['reason']}", []).append(
                    each["length"]
                )
        rows.append(row)
    head = ["length", "variant", "error", "memory", "forward", "memory", "with backward"]
    what = ", ".join(f"{name} {size}" for name, size in shape.items() if name != "causal")
    lines = [
        "",
        f"attention variants   {what}{', causal' if shape['causal'] else ''}; queries, keys and values are random",
        describe(record["environment"]),
        "",
        align([head, *rows], "rlr"),
        "",
        *(f"not run: {reason} (length {', '.join(map(str, lengths))})" for reason, lengths in reasons.items()),
        "in memory, forward and backward, below exact attention (xla) of the lengths measured:",
        *(f"  {name}: {f'from {at} on' if at else 'nowhere'}" for name, at in record["crossings"].items()),
    ]
    return "\n".join([*lines, *_trained_lines(record["trained"])])


def _trained_lines(found: list[dict[str, Any]]) -> list[str]:
    if not found:
        return []
    lengths, names = (list(dict.fromkeys(each[key] for each in found)) for key in ("length", "name"))
    errors = {(each["name"], each["length"]): each.get("error") for each in found}
    cell = lambda error: "–" if error is None else f"{error:.3f}"  # noqa: E731
    table = [[name, *(cell(errors[name, length]) for length in lengths)] for name in names]
    reasons = {f"  {each['name']}, {each['length']}: {each['reason']}": None for each in found if "reason" in each}
    heading = "error on trained heads, by how many of their first positions:"
    return [heading, align([["", *map(str, lengths)], *table], "l" + "r" * len(lengths)), *reasons]
