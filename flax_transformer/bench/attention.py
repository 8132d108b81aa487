"""Time every attention backend that can serve a shape, forward and backward.

FLOPs are those of Dao 2023 (https://arxiv.org/abs/2307.08691, section 4.1): 4 B T² N H forward, halved when causal,
and 2.5 × as many backward. Model FLOPs (`bench.flops`) count causal attention in full; a kernel is judged by what it
has to do.
"""

from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flax_transformer.bench.device import FLOATS, device_peak
from flax_transformer.bench.environment import describe, environment
from flax_transformer.bench.memory import OutOfMemoryError, out_of_memory_explained
from flax_transformer.bench.report import amount, seconds
from flax_transformer.bench.timing import Spread, time_calls
from flax_transformer.ops import Mask, attention, explain_attention
from flax_transformer.text_table import align

BACKWARD = 2.5


def attention_flops(rows: int, length: int, heads: int, width: int, *, causal: bool) -> float:
    """Count the forward pass of self-attention.

    >>> attention_flops(1, 4, 2, 8, causal=False)
    1024.0
    """
    return 4.0 * rows * length**2 * heads * width * (0.5 if causal else 1)


def bench_attention(
    lengths: tuple[int, ...],
    *,
    batch: int = 1,
    heads: int = 8,
    kv_heads: int | None = None,
    width: int = 64,
    dtype: str = "float32",
    causal: bool = False,
    budget: float = 0.5,
) -> dict[str, Any]:
    """Time each backend at each length.

    Args:
      budget: seconds spent on each measurement, about.

    Raises:
      ValueError: for shapes or types that cannot be.
    """
    sizes = [("batch", batch), ("heads", heads), ("width", width), *(("length", length) for length in lengths)]
    for name, value in sizes:
        if value < 1:
            raise ValueError(f"{name} must be a positive number, got {value}")
    if dtype not in FLOATS:
        raise ValueError(f"dtype must be one of {', '.join(FLOATS)}, got {dtype!r}")
    mask = Mask(causal=True) if causal else None
    results, random = [], np.random.default_rng(0)
    for length in lengths:
        shapes = [(batch, length, n, width) for n in (heads, kv_heads or heads, kv_heads or heads)]
        q, k, v = (jnp.asarray(random.standard_normal(shape), dtype) for shape in shapes)
        verdicts = dict(line.split(maxsplit=1) for line in explain_attention(q, k, v, mask).splitlines())
        flops = attention_flops(batch, length, heads, width, causal=causal)
        for backend, verdict in verdicts.items():
            result = {"length": length, "backend": backend, "verdict": verdict}
            if not verdict.startswith("cannot"):
                result |= _measure(q, k, v, mask, backend, budget, flops)
            results.append(result)
    shape = {"batch": batch, "heads": heads, "kv_heads": kv_heads or heads, "width": width}
    return {
        "target": {"name": "attention", "dtype": dtype, "shape": shape | {"causal": causal}},
        "environment": environment(),
        "formula": f"4·B·T²·N·H forward{', halved as causal' if causal else ''}; backward {BACKWARD} × forward",
        "peak": asdict(device_peak(dtype)),
        "results": results,
    }


def render_attention(record: dict[str, Any]) -> str:
    """Lay the record out as text: a table, and why some backends are not in it."""
    shape = record["target"]["shape"]
    what = ", ".join(f"{name} {size}" for name, size in shape.items() if name != "causal")
    peak = record["peak"]["flops"]
    rows, reasons = [], {}
    for result in record["results"]:
        if "forward" not in result:
            reasons.setdefault(f"{result['backend']} {result['verdict']}", []).append(str(result["length"]))
            continue
        row = [str(result["length"]), result["backend"] + ("*" if result["verdict"] == "chosen" else "")]
        for part in ("forward", "forward_backward"):
            speed = result[f"{part}_flops_per_second"]
            row += [seconds(result[part]["median"]), amount(speed), f"{100 * speed / peak:.0f} %"]
        rows.append(row)
    heads = ["length", "backend", "forward", "FLOP/s", "of peak", "with backward", "FLOP/s", "of peak"]
    lines = [
        "",
        f"attention   {record['target']['dtype']}, {what}{', causal' if shape['causal'] else ''}",
        describe(record["environment"]),
        "",
        align([heads, *rows], "rlr"),
        "",
        "* what backend='auto' takes",
        *(f"{reason} (length {', '.join(lengths)})" for reason, lengths in reasons.items()),
        f"FLOPs: {record['formula']}",
        f"peak: {amount(peak, 'FLOP/s')} ({record['peak']['source']})",
    ]
    return "\n".join(lines)


def _measure(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask | None, backend: str, budget: float, flops: float
) -> dict[str, Any]:
    """Time a backend; where it runs out of memory, that is its verdict."""
    try:
        with out_of_memory_explained():
            forward, both = _time(q, k, v, mask, backend, budget)
    except OutOfMemoryError as error:
        return {"verdict": f"cannot: {error}"}
    return {
        "forward": asdict(forward),
        "forward_backward": asdict(both),
        "forward_flops_per_second": flops / forward.median,
        "forward_backward_flops_per_second": flops * (1 + BACKWARD) / both.median,
    }


def _time(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask | None, backend: str, budget: float
) -> tuple[Spread, Spread]:
    def forward(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return attention(q, k, v, mask, backend=backend)

    def both(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple:
        out, pull = jax.vjp(forward, q, k, v)
        return out, pull(out)

    return time_calls(jax.jit(forward), q, k, v, seconds=budget), time_calls(jax.jit(both), q, k, v, seconds=budget)
