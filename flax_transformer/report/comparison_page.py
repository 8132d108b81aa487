"""The page and the table of several runs beside each other; like that of one run, it asks the network for nothing."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flax_transformer.frozen import frozen
from flax_transformer.listing import listed
from flax_transformer.report.comparison import (
    ComparedRun,
    Group,
    Metric,
    Score,
    common,
    grouped,
    measured,
    positions,
    settings,
)
from flax_transformer.report.image_attention import ImageAttention, mean_overlay, png
from flax_transformer.report.page import SAMPLES, WEIGHTS, pack_maps, page_of, short
from flax_transformer.report.run import is_number
from flax_transformer.report.sample import image_sample
from flax_transformer.train.progress import number, percent, titled, unit_of
from flax_transformer.train.time_budget import CPU, SPEED, TOTAL

SCRIPTS = ("widget.js", "attention.js", "samples.js", "comparison.js")
"""The last one draws the page."""
POINTS = 300
"""Records of a run's split that the page holds; of more, one in n."""
PIXELS = 6_000_000
"""Bytes of images that the page holds."""
FEW = 12
"""Samples that all runs should share; of fewer, samples that only some share are shown too."""
UNSEEN = ("learning_rate", "gradient_norm", "skipped")
"""Metrics of training that are not drawn."""


@frozen
class Comparison:
    """What a page of several runs shows."""

    runs: tuple[ComparedRun, ...]
    metric: Metric
    """What the runs are compared by first."""
    title: str = "Comparison"
    notes: tuple[str, ...] = ()

    @property
    def groups(self) -> list[Group]:
        """The runs, those that differ in nothing but the seed together."""
        return grouped(self.runs)

    @property
    def metrics(self) -> list[Metric]:
        """All that was measured, what counts first."""
        return [self.metric, *(metric for metric in measured(self.runs) if metric != self.metric)]


def render_comparison(comparison: Comparison) -> str:
    """Make the page."""
    groups, notes = comparison.groups, [*comparison.notes, *_missing(comparison)]
    keys = matched([group.first.samples for group in groups])
    data = {
        "title": comparison.title,
        "facts": [["runs", str(len(comparison.runs))], ["settings", str(len(groups))]],
        "metric": list(comparison.metric),
        "units": {
            name: unit
            for run in comparison.runs
            for record in run.records
            for name in record
            if (unit := unit_of(name))
        },
        "groups": [group.name for group in groups],
        "scores": {
            "metrics": [list(metric) for metric in comparison.metrics],
            "rows": [[group.score(metric) for metric in comparison.metrics] for group in groups],
        },
        "cost": [_cost(group) for group in groups],
        "curves": [
            {"name": run.name, "group": at, "splits": _curves(run, notes)}
            for at, group in enumerate(groups)
            for run in group.runs
        ],
        "settings": list(settings(groups).items()),
        "samples": _samples(groups, keys, notes),
        "pictures": _attention(groups, notes),
        "seen": _seen(groups),
    }
    return page_of({**data, "notes": list(dict.fromkeys(notes))}, SCRIPTS)


def comparison_table(comparison: Comparison) -> str:
    """Write for a terminal what the runs score and cost, a line a group.

    Columns are the metric that counts and what else all have, parameters, FLOPs of a step, speed and time.
    """
    shared = common(comparison.runs)
    metrics = [m for m in comparison.metrics if m == comparison.metric or (m in shared and m.split == "test")][:3]
    units = {speed[1] for run in comparison.runs if (speed := run.speed())}
    unit = units.pop() if len(units) == 1 else "items"
    heads = [
        "",
        *(f"{m.split} {titled(m.name)}" for m in metrics),
        "n",
        "parameters",
        "FLOPs/step",
        f"{unit}/s",
        "time",
        "CPU",
    ]
    columns = [_column([group.score(m) for group in comparison.groups]) for m in metrics]
    rows = [[g.name, *(column[at] for column in columns), *_costs(g)] for at, g in enumerate(comparison.groups)]
    kept = [at for at in range(len(heads)) if at == 0 or any(row[at] != "–" for row in rows)]
    lines = [[line[at] for at in kept] for line in (heads, *rows)]
    wide = [max(len(line[at]) for line in lines) for at in range(len(kept))]
    padded = [[f"{text:{'<' if at == 0 else '>'}{wide[at]}}" for at, text in enumerate(line)] for line in lines]
    table = "\n".join("  ".join(line).rstrip() for line in padded)
    if all(len(group.runs) == 1 for group in comparison.groups):
        return table
    return f"{table}\n± is the sample standard deviation of n runs that differ in nothing but the seed"


def _column(scores: Sequence[Score | None]) -> list[str]:
    """Spell a metric of all groups, with as many decimals for each."""
    digits = decimals([score for score in scores if score is not None])
    spelled = []
    for score in scores:
        spread = "" if score is None or score.spread is None else f" ± {score.spread:,.{digits}f}"
        spelled.append("–" if score is None else f"{score.mean:,.{digits}f}{spread}")
    return spelled


def decimals(scores: Sequence[Score]) -> int:
    """Return the decimals by which the widest spread has two digits, or the largest value four.

    >>> decimals([Score(31.4159, 0.234, 3), Score(30.0, None, 1)]), decimals([Score(0.5, None, 1)])
    (2, 4)
    """
    spread = max((score.spread or 0.0 for score in scores), default=0.0)
    if spread:
        return min(max(1 - math.floor(math.log10(spread)), 0), 4)
    most = max((abs(score.mean) for score in scores), default=0.0)
    return min(max(3 - math.floor(math.log10(most)), 0), 4) if most else 0


def _costs(group: Group) -> list[str]:
    cost = _cost(group)
    spelled = [cost["parameters"] and f"{cost['parameters']:,}", cost["flops"] and magnitude(cost["flops"])]
    spelled += [cost["speed"] and number(cost["speed"])]
    spelled += [cost[name] and f"{cost[name] / 60:,.1f} min" for name in ("seconds", "cpu")]
    return [str(len(group.runs)), *("–" if text is None else text for text in spelled)]


def magnitude(value: int | float) -> str:
    """Spell a large number.

    >>> magnitude(10_100_000_000)
    '10.1 G'
    """
    power = min(max(int(math.log10(max(value, 1)) // 3), 0), 5)
    return f"{value / 1000**power:.3g} {' kMGTP'[power]}".rstrip()


def _cost(group: Group) -> dict[str, Any]:
    speeds = [speed for run in group.runs if (speed := run.speed())]
    return {
        "runs": len(group.runs),
        "steps": group.mean(lambda run: max((r["step"] for r in run.records if r["split"] == "train"), default=None)),
        "parameters": group.first.parameters,
        "flops": group.first.flops,
        "unit": speeds[0][1] if speeds else None,
        "items": group.mean(lambda run: run.total(run.unit) if run.unit else None),
        "speed": group.mean(lambda run: speed[0] if (speed := run.speed()) else None),
        "seconds": group.mean(lambda run: run.total(TOTAL)),
        "cpu": group.mean(lambda run: run.total(CPU)),
    }


def _missing(comparison: Comparison) -> list[str]:
    """Return what is not known of which runs."""
    runs = comparison.runs
    notes = [note for run in runs for note in run.notes]
    for metric in comparison.metrics:
        lacking = [run.name for run in runs if run.last(metric) is None]
        if lacking and metric == comparison.metric:
            notes.append(f"{metric.split} {metric.name} is missing for {listed(lacking)}.")
    parts = {
        "the FLOPs of a step are": lambda run: run.flops,
        "how much it was trained on is": lambda run: run.unit,
        "how long it took is": lambda run: run.total(TOTAL),
    }
    for what, find in parts.items():
        if lacking := [run.name for run in runs if find(run) is None]:
            notes.append(f"Of {listed(lacking)} {what} not known, so there are no curves over that.")
    units = dict.fromkeys(run.unit for run in runs if run.unit)
    if len(units) > 1:
        notes.append(f"What the runs count differs: {', '.join(units)}; over items, curves are side by side only.")
    return notes


def _curves(run: ComparedRun, notes: list[str]) -> dict[str, dict[str, Any]]:
    """Return what was measured of a run in columns, by split, with where the run then was."""
    where, splits = positions(run), {}
    for split in ("train", "validation"):
        last = {record["step"]: at for at, record in enumerate(run.records) if record["split"] == split}
        rows = [last[step] for step in sorted(last)]
        every = max(math.ceil(len(rows) / POINTS), 1)
        if every > 1:
            notes.append(f"Of {len(rows):,} {split} records of {run.name} the page holds one in {every}.")
            rows = sorted({*rows[::every], rows[-1]})
        names = dict.fromkeys(name for at in rows for name, value in run.records[at].items() if is_number(value))
        names = [name for name in names if not _is_cost(name) and name not in ("step", *UNSEEN, run.unit)]
        splits[split] = {
            "at": {axis: [short(values[at]) for at in rows] for axis, values in where.items()},
            "of": {name: [_shown(name, short(run.records[at].get(name))) for at in rows] for name in names},
        }
    return splits


def _shown(name: str, value: float | None) -> float | None:
    return value if value is None else percent(name, value)


def _is_cost(name: str) -> bool:
    return name.endswith((SPEED, TOTAL))


def matched(samples: Sequence[Sequence[Mapping[str, Any]]]) -> list[tuple]:
    """List what identifies the samples that all runs share; where these are few, then others, of two runs at least."""
    counts: dict[tuple, int] = {}
    for one in samples:
        for key in dict.fromkeys(map(sample_key, one)):
            counts[key] = counts.get(key, 0) + 1
    most = max(counts.values(), default=0)
    shared = [key for key, count in counts.items() if count == most > 1]
    if len(shared) < FEW:
        rest = sorted((key for key, count in counts.items() if 1 < count < most), key=lambda key: -counts[key])
        shared += rest[: FEW - len(shared)]
    return shared


def sample_key(sample: Mapping[str, Any]) -> tuple:
    """Return what makes a sample the same in two runs: source, target, and its image."""
    drawing = sample.get("picture")
    seen = hashlib.sha256(drawing.encode()).hexdigest() if isinstance(drawing, str) and "size" not in sample else ""
    return str(sample.get("source", "")), str(sample.get("target", "")), seen


def _samples(groups: Sequence[Group], keys: Sequence[tuple], notes: list[str]) -> dict[str, Any] | None:
    """Return samples with what each group's first run makes of them: half spread evenly, half those they differ in."""
    lacking = [group.name for group in groups if not group.first.samples]
    if lacking:
        notes.append(f"There are no samples of {listed(lacking)}.")
    if not keys:
        if len(groups) - len(lacking) > 1:
            notes.append("The runs have no samples in common.")
        return None
    found = [{sample_key(sample): sample for sample in group.first.samples} for group in groups]
    differ = [len({str(one[key].get("hypothesis")) for one in found if key in one}) for key in keys]
    chosen = range(len(keys))
    if len(keys) > SAMPLES:
        most = sorted(chosen, key=lambda at: -differ[at])[: SAMPLES // 2]
        chosen = sorted({*chosen[:: math.ceil(len(keys) / (SAMPLES // 2))], *most})
    shown, room = [], PIXELS
    for at in chosen:
        rows = [one.get(keys[at]) for one in found]
        size = sum(len(row["picture"]) for row in rows if row and row.get("picture"))
        if (room := room - size) < 0:
            notes.append("Some images are left out, to keep the page small.")
            break
        shown.append({"source": keys[at][0], "target": keys[at][1] or None, "rows": [_sample(row) for row in rows]})
    return {"total": len(keys), "shown": shown}


def _sample(sample: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if sample is None:
        return None
    if sample.get("picture"):
        return image_sample(sample)
    hypothesis = sample.get("hypothesis", sample.get("caption"))
    return {"hypothesis": None if hypothesis is None else str(hypothesis), "score": short(sample.get("score"))}


def _attention(groups: Sequence[Group], notes: list[str]) -> list[dict[str, Any]]:
    """Put images of one sentence together, one a group; None for a group that has none of it."""
    sources = dict.fromkeys(drawing.source for group in groups for drawing in group.first.text_attention)
    room, kept = WEIGHTS, []
    for source in sources:
        of = [next((p for p in group.first.text_attention if p.source == source), None) for group in groups]
        room -= 2 * sum(maps.weights.size for drawing in of if drawing for maps in drawing.maps)
        if room < 0 and kept:
            notes.append("Attention of some sentences is left out, to keep the page small.")
            break
        views = [p and {"output": p.output, "maps": [pack_maps(maps) for maps in p.maps]} for p in of]
        kept.append({"source": source, "views": views})
    return kept


def _seen(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Put together the attention of the groups' last layers over the images that several have."""
    sources = dict.fromkeys(image.source for group in groups for image in group.first.images)
    found = []
    for source in sources:
        of = [next((i for i in group.first.images if i.source == source), None) for group in groups]
        if sum(image is not None for image in of) > 1:
            found.append({"source": source, "views": [image and _overlaid(image) for image in of]})
    return found


def _overlaid(image: ImageAttention) -> dict[str, str]:
    """Lay the attention of the last layer, the mean of its heads, over an image."""
    drawn, extent = mean_overlay(image)
    urls = {"picture": png(np.round(255 * drawn).astype(np.uint8)), "plain": png(image.pixels)}
    return {**urls, "output": image.output, "extent": extent}
