"""The page of a compressed checkpoint: its costs before and after, and the error of every layer by kind."""

import html
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flax_transformer.atomic import write_file
from flax_transformer.text_table import align

STYLE = """
:root { color-scheme: light dark; --ink: light-dark(#1b1b1f, #e6e6ea); --faint: light-dark(#6b6b76, #9a9aa6);
  --bar: light-dark(#3b6fd4, #7aa2ff); --line: light-dark(#dcdce2, #3a3a44); }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: light-dark(#fff, #17171b);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; }
th, td { padding: .25rem .7rem .25rem 0; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere; }
tr { border-bottom: 1px solid var(--line); }
.layers { display: grid; grid-template-columns: minmax(10rem, 22rem) 1fr; gap: .5rem 1rem; align-items: end; }
.layers code { overflow-wrap: anywhere; font-size: .85rem; }
.bars { display: flex; align-items: end; gap: 2px; height: 3.5rem; }
.bars span { flex: 1 1 0; max-width: 1.5rem; background: var(--bar); min-height: 1px; }
.heads td { padding: .35rem .6rem; border: 2px solid light-dark(#fff, #17171b); font-size: .8rem; }
.heads td.gone { text-decoration: line-through; outline: 1px dashed var(--faint); outline-offset: -4px; }
p, .faint { color: var(--faint); } @media (max-width: 30rem) { .layers { grid-template-columns: 1fr; } }
"""


@dataclass(frozen=True)
class CompressionPage:
    """What was written, and the same table as text."""

    path: Path
    text: str


def compression_rows(record: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return the rows of the table: what, before, after, and the ratio or the difference."""
    before, after = record["before"], record["after"]
    spelled = {
        "disk": ("size on disk", _bytes), "bytes": ("parameters in memory", _bytes),
        "parameters": ("parameters", _count), "bits": ("bits a parameter", "{:.2f}".format),
        "flops": ("FLOPs of a call", _count), "memory": ("memory of a call", _bytes),
        "seconds": ("time of a call here", _seconds),
    }  # fmt: skip
    zeros = []
    if "zeros" in after:
        zeros = [("zeros in kernels", f"{before['zeros']:.1%}", f"{after['zeros']:.1%}", "")]
    rows = zeros + [
        (name, put(before[key]), put(after[key]), f"{after[key] / before[key]:.3f}×")
        for key, (name, put) in spelled.items()
        if key in before and key in after
    ]
    scores = record.get("score", {"before": {}, "after": {}})
    rows += [
        (key.replace("_", " "), f"{value:,.4g}", f"{scores['after'][key]:,.4g}", f"{scores['after'][key] - value:+.4g}")
        for key, value in scores["before"].items()
        if key in scores["after"] and "per_second" not in key
    ]
    return rows


def worst_kernels(record: Mapping[str, Any], count: int = 5) -> list[tuple[str, int, float]]:
    """Return the layers whose kernels changed most: path, number of the layer, relative error."""
    found = [(path, i, error) for path, errors in record["errors"].items() for i, error in enumerate(errors)]
    return sorted(found, key=lambda each: -each[2])[:count]


def write_compression(path: str | os.PathLike, record: Mapping[str, Any]) -> CompressionPage:
    """Write the page of a compressed checkpoint: one file without scripts, which loads nothing.

    Args:
      record: `before` and `after`, costs by name; `errors`, of each kernel by path the relative error of each layer;
        `rule`, options by name; perhaps `score`, metrics `before` and `after`; where heads were removed `heads`, of
        every attention by path the importance of its heads in each layer, and `kept`, the numbers of those that stayed.
    """
    rows = [("", "before", "after", ""), *compression_rows(record)]
    worst = [("largest errors", "layer", "‖W − Q‖ / ‖W‖")]
    worst += [(name, str(layer), f"{error:.4f}") for name, layer, error in worst_kernels(record)]
    rule = " ".join(f"{name}={value}" for name, value in record["rule"].items())
    title = f"Compressed: {record['checkpoint']}"
    most = max((error for errors in record["errors"].values() for error in errors), default=0.0) or 1.0
    layers = "".join(_layer(name, errors, most) for name, errors in record["errors"].items())
    changed = f"""<h2>Error by layer and kernel</h2>
<p>‖W − Q‖ / ‖W‖ of each kernel, layers from the first to the last; a full bar is {most:.4f}.</p>
<div class="layers">{layers}</div>
<h2>The layers that changed most</h2>{_table(worst)}
"""
    content = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>
<h1>{html.escape(title)}</h1><p>{html.escape(rule)}</p>
{_table(rows)}
{_heads(record)}{changed if record["errors"] else ""}</body></html>
"""
    write_file(Path(path), content)
    tables = [align(each, "lr") for each in (rows, worst) if len(each) > 1]
    return CompressionPage(Path(path), "\n\n".join(tables))


def _heads(record: Mapping[str, Any]) -> str:
    """Draw the importance of heads, a row for each layer and a column for each head."""
    if "heads" not in record:
        return ""
    maps = "".join(
        f"<h3><code>{html.escape(path)}</code></h3>{_heat(layers, record['kept'][path])}"
        for path, layers in record["heads"].items()
    )
    return f"""<h2>Heads by importance</h2>
<p>How much the loss depends on each head, |∂loss/∂ξ| of a factor ξ = 1 on what it gives; the squares of a layer add up
to 1. Heads that are struck through were removed.</p>{maps}
"""


def _heat(layers: list[list[float]], kept: list[list[int]]) -> str:
    head = "".join(f"<th>{number}</th>" for number in range(len(layers[0])))
    rows = "".join(
        f"<tr><th>layer {layer}</th>"
        + "".join(
            f'<td{"" if number in stay else " class=gone"} style="background:color-mix(in srgb, var(--bar) '
            f'{70 * value:.0f}%, transparent)">{value:.2f}</td>'
            for number, value in enumerate(values)
        )
        + "</tr>"
        for layer, (values, stay) in enumerate(zip(layers, kept, strict=True))
    )
    return f'<table class="heads"><tr><th></th>{head}</tr>{rows}</table>'


def _layer(name: str, errors: list[float], most: float) -> str:
    bars = "".join(
        f'<span style="height:{100 * error / most:.1f}%" title="layer {number}: {error:.4f}"></span>'
        for number, error in enumerate(errors)
    )
    label = f"{name}: from {min(errors):.4f} to {max(errors):.4f}"
    return (
        f'<code>{html.escape(name)}</code><div class="bars" role="img" aria-label="{html.escape(label)}">{bars}</div>'
    )


def _table(rows: list[tuple[str, ...]]) -> str:
    head, *body = rows
    lines = ["".join(f"<th>{html.escape(cell)}</th>" for cell in head)]
    lines += ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in body]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _bytes(value: int | float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


def _count(value: int | float) -> str:
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value:,.0f}"


def _seconds(value: int | float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"
