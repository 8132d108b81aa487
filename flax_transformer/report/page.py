"""One self-contained HTML page: curves, metrics, samples, attention, configuration. It asks the network for nothing.

The page is its data as JSON beside a fixed script, which writes every text as text, never as markup.
"""

import base64
import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from flax_transformer.atomic import write_file
from flax_transformer.frozen import frozen
from flax_transformer.listing import last_parts
from flax_transformer.named_scope import OUTSIDE
from flax_transformer.ops import spectrum_rank
from flax_transformer.report.attention import AttentionMaps
from flax_transformer.report.copied import copied_spans
from flax_transformer.report.image_attention import COLOURS, ImageAttention, packed
from flax_transformer.report.sample import image_sample
from flax_transformer.train.profile import OPERATIONS, Operation
from flax_transformer.train.progress import unit_of

POINTS = 1_000
"""Records of a split that the page holds; of more, one in n."""

SAMPLES = 40
"""Samples that the page holds: half spread evenly, half those the model was least sure of."""

SCRIPTS = ("widget.js", "attention.js", "image_attention.js", "samples.js", "page.js")
"""The last one draws the page."""

SEEN = 6_000_000
"""Bytes of attention weights over images that the page holds, one a weight; patches are merged until they fit."""

WEIGHTS = 2_000_000
"""Bytes of attention weights over tokens that the page holds, two a weight; sentences beyond are left out."""


PIXELS = 6_000_000
"""Bytes of samples' images and audio that the page holds."""


@dataclass(frozen=True)
class TextAttention:
    """The attention of one sentence."""

    source: str
    output: str
    maps: tuple[AttentionMaps, ...]


@frozen
class Report:
    """What a page shows; a part that is None has no place on it, one that is empty is said to be missing."""

    title: str
    facts: Mapping[str, str] = field(default_factory=dict)
    """What stands under the title, by name."""
    notes: tuple[str, ...] = ()
    """What the reader must know, a sentence each."""
    records: Sequence[Mapping[str, Any]] | None = None
    """As in metrics.jsonl: `step`, `split`, then metrics; None or NaN is a gap."""
    samples: Sequence[Mapping[str, Any]] | None = None
    """As in samples.jsonl: `source`, `target`, `hypothesis`, and `tokens` with their `logprobs`; one that is `copied`
    from its source in part has that marked; with a `picture`, a data URL, as `report.sample` says."""
    confusion: Mapping[str, Any] | None = None
    """Of a classifier: names of `classes`, and `counts` of samples by true class, then by the class told."""
    text_attention: Sequence[TextAttention] | None = None
    images: Sequence[ImageAttention] | None = None
    """Attention over images."""
    profile: Sequence[Operation] | None = None
    """What the steps that were traced have spent their time on, the longest first."""
    config: Mapping[str, Any] | None = None
    headline: str = ""
    """The test metric that comes first."""


def render(report: Report) -> str:
    """Make the page."""
    notes = list(report.notes)
    data = {
        "title": report.title,
        "facts": list(report.facts.items()),
        "headline": report.headline,
        "series": None if report.records is None else _series(report.records, notes),
        "units": _units(report.records or ()),
        **_all_samples(report.samples, notes),
        "confusion": report.confusion,
        "pictures": None if report.text_attention is None else _text_attention(report.text_attention, notes),
        "seen": None if report.images is None else _seen(report.images, notes),
        "colours": COLOURS.tolist() if report.images else None,
        "profile": None if report.profile is None else _profile(report.profile),
        "config": last_parts(report.config),
    }
    return page_of({**data, "notes": notes}, SCRIPTS)


def _units(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the metrics that are told in percent, with what they are in the records."""
    names = dict.fromkeys(name for record in records for name in record)
    return {name: unit for name in names if (unit := unit_of(name))}


def page_of(data: Mapping[str, Any], scripts: Sequence[str]) -> str:
    """Put data beside the scripts that draw them."""
    # "<" is all that could end the script element early or open a comment in it.
    text = json.dumps(_finite(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    page = _part("page.html")
    page = page.replace("{{css}}", _part("page.css")).replace("{{js}}", "".join(map(_part, scripts)))
    page = page.replace("{{data}}", text.replace("<", "\\u003c"))  # last, as the data may hold anything
    return page.encode("utf-8", "replace").decode("utf-8")  # half a character, cut out of its pair


def _profile(found: Sequence[Operation]) -> dict[str, Any]:
    """Take the longest operations, each with its share of all."""
    whole = sum(each.seconds for each in found) or 1.0
    modules = Counter()
    for each in found:
        modules[each.module] += each.seconds
    return {
        "modules": [[name or OUTSIDE, seconds / whole] for name, seconds in modules.most_common(OPERATIONS)],
        "operations": [
            [each.module or OUTSIDE, each.name, each.seconds, each.seconds / whole, each.count]
            for each in found[:OPERATIONS]
        ],
        "more": max(0, len(found) - OPERATIONS),
    }


def write_page(path: str | os.PathLike, report: Report) -> Path:
    """Write the page; the file appears whole or not at all."""
    return write_file(path, render(report))


def _part(name: str) -> str:
    return resources.files("flax_transformer.report").joinpath(name).read_text(encoding="utf-8")


def _finite(value: Any) -> Any:
    """Spell numbers that JSON has no word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _series(records: Sequence[Mapping[str, Any]], notes: list[str]) -> dict[str, dict[str, list]]:
    """Turn records into columns by split, in the order of steps; of records of one step the last one counts."""
    splits: dict[str, dict[int, Mapping[str, Any]]] = {}
    for record in records:
        splits.setdefault(record["split"], {})[record["step"]] = record
    series = {}
    for split, by_step in splits.items():
        steps = sorted(by_step)
        if len(steps) > POINTS:
            every = math.ceil(len(steps) / POINTS)
            notes.append(f"Of {len(steps):,} {split} records the page holds one in {every}, and the last one.")
            steps = sorted({*steps[::every], steps[-1]})
        names = dict.fromkeys(name for step in steps for name in by_step[step] if name not in ("step", "split"))
        columns = {name: [short(by_step[step].get(name)) for step in steps] for name in names}
        series[split] = {"step": steps, **columns}
    return series


def short(value: Any) -> float | None:
    """Keep 6 digits of a number, and nothing of anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")


def _all_samples(samples: Sequence[Mapping[str, Any]] | None, notes: list[str]) -> dict[str, Any]:
    """Part samples with images, or probabilities of classes, from those without."""
    if samples is None:
        return {"samples": None, "images": None}
    texts = [sample for sample in samples if "picture" not in sample and not isinstance(sample.get("scores"), Mapping)]
    images, room = [], PIXELS
    for sample in (each for each in samples if "picture" in each or isinstance(each.get("scores"), Mapping)):
        if (room := room - len(sample.get("picture") or "") - len(sample.get("audio") or "")) > 0:
            images.append(image_sample(sample))
    if left := len(samples) - len(texts) - len(images):
        notes.append(f"Images of samples left out, to keep the page small: {left:,}.")
    return {"samples": None if images and not texts else _samples(texts), "images": images or None}


def _samples(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    every = max(math.ceil(len(samples) / (SAMPLES // 2)), 1)
    unsure = sorted(range(len(samples)), key=lambda i: _confidence(samples[i]))
    chosen = list(range(len(samples)))
    if len(samples) > SAMPLES:
        chosen = sorted({*chosen[::every], *unsure[: SAMPLES // 2]})
    names = ("source", "target", "hypothesis", "tokens")
    shown = [
        {
            "number": i + 1,
            **{name: samples[i].get(name) for name in names},
            "logprobs": _logprobs(samples[i]),
            **_copied(samples[i]),
        }
        for i in chosen
    ]
    return {"total": len(samples), "shown": shown}


def _copied(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Find what of a summary is copied from its source."""
    texts = [sample.get(name) for name in ("source", "hypothesis")]
    if sample.get("copied") is not True or not all(isinstance(text, str) for text in texts):
        return {}
    return {"copied": copied_spans(*texts)._asdict()}


def _logprobs(sample: Mapping[str, Any]) -> list[float | None]:
    values = sample.get("logprobs")
    return [short(value) for value in values] if isinstance(values, list | tuple) else []


def _confidence(sample: Mapping[str, Any]) -> float:
    values = [value for value in _logprobs(sample) if value is not None]
    return sum(values) / len(values) if values else 0.0


def _text_attention(text_attention: Sequence[TextAttention], notes: list[str]) -> list[dict]:
    kept, room = [], WEIGHTS
    for drawing in text_attention:
        size = 2 * sum(maps.weights.size for maps in drawing.maps)
        if size > room and kept:
            notes.append("Attention of some samples is left out, to keep the page small.")
            break
        room -= size
        kept.append(
            {"source": drawing.source, "output": drawing.output, "maps": [pack_maps(maps) for maps in drawing.maps]}
        )
    return kept


def _seen(images: Sequence[ImageAttention], notes: list[str]) -> list[dict[str, Any]]:
    made = [packed(image, SEEN // len(images)) for image in images]
    if (side := max((side for _, side in made), default=1)) > 1:
        notes.append(f"Attention over images is shown of up to {side} × {side} patches merged, to keep the page small.")
    return [image for image, _ in made]


def pack_maps(maps: AttentionMaps) -> dict[str, Any]:
    """Pack weights as 16-bit integers: steps of 1/65535, finer than any digit shown; and each head's rank."""
    weights = np.nan_to_num(np.clip(maps.weights, 0, 1))
    packed = np.round(weights * 65535).astype("<u2").tobytes()
    return {
        "name": maps.name,
        "caption": maps.caption,
        "rows": maps.rows,
        "columns": maps.columns,
        "layers": weights.shape[0],
        "heads": weights.shape[1],
        "ranks": spectrum_rank(weights).tolist(),
        "weights": base64.b64encode(packed).decode(),
    }
