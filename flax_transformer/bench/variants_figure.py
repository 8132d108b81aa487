"""The figure of `bench variants`: error, memory and time by length, a line for each variant."""

from pathlib import Path
from typing import Any

from flax_transformer.bench.variants import EXACT

PANELS = (
    ("memory, forward", "forward", lambda part: part.get("temporaries", 0) / 1e6, "MB beside arguments and results"),
    ("memory, with backward", "forward_backward", lambda part: part.get("temporaries", 0) / 1e6, ""),
    ("time, forward", "forward", lambda part: part.get("time", {}).get("median"), "seconds"),
    ("time, with backward", "forward_backward", lambda part: part.get("time", {}).get("median"), ""),
)


def variants_figure(record: dict[str, Any]) -> Any:
    """Draw a record of `bench_variants`, on logarithmic axes; exact attention is black.

    Returns:
      A `matplotlib.figure.Figure` that belongs to no window.
    """
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(each["name"] for each in record["results"]))
    figure = Figure(figsize=(15, 8), dpi=120, layout="constrained")
    grid = figure.subplots(2, 3).ravel()
    looks = {name: _look(at, name) for at, name in enumerate(names)}
    for axes, (title, part, value, unit) in zip(grid[[0, 1, 3, 4]], PANELS, strict=True):
        for name in names:
            read = lambda each, part=part, value=value: value(each.get(part) or {})  # noqa: E731
            _line(axes, record["results"], name, read, looks[name])
        axes.set(title=title, ylabel=unit, xlabel="length")
    for axes, heads, found in ((grid[2], "random", record["results"]), (grid[5], "trained", record["trained"])):
        for name in names:
            if name not in EXACT:
                _line(axes, found, name, lambda each: each.get("error"), looks[name])
        axes.set(title=f"error against softmax, {heads} heads", xlabel="length", ylabel="share of the norm")
    if not record["trained"]:
        grid[5].set_axis_off()
        grid[5].set_title("")
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center")
    shape = record["target"]["shape"]
    what = ", ".join(f"{name} {size}" for name, size in shape.items())
    figure.suptitle(f"{record['target']['name']}: {what}; {record['environment']['cpu']}")
    return figure


def save_figure(record: dict[str, Any], path: Path | None) -> None:
    """Write the figure as what the file's ending asks of matplotlib; None writes nothing."""
    if path is not None:
        variants_figure(record).savefig(path)


def _line(axes: Any, results: list[dict[str, Any]], name: str, value: Any, look: dict) -> None:
    found = [(each["length"], value(each)) for each in results if each["name"] == name]
    found = [(length, number) for length, number in found if number]
    if found:
        axes.plot(*zip(*found, strict=True), label=name, **look)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")


def _look(at: int, name: str) -> dict[str, Any]:
    if name in EXACT:
        return {"color": "black", "linestyle": "-" if name == EXACT[0] else "--", "marker": ".", "linewidth": 2}
    return {"color": f"C{at % 10}", "marker": "osv^D*Pxh"[at % 9], "markersize": 4, "linewidth": 1.2}
