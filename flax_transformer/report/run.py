"""A run folder as a report: what its files say, whole or not."""

import json
import math
from pathlib import Path
from typing import Any

from flax_transformer.report.page import Report
from flax_transformer.report.sample import read_confusion, read_media
from flax_transformer.train.folder import RunFolder, read_config
from flax_transformer.train.profile import FOLDER, Operation, operations
from flax_transformer.train.time_budget import NAMES, counted, goodput


def read_run(folder: RunFolder) -> Report:
    """Read configuration, metrics and samples; whatever is missing, damaged or not a number becomes a note.

    Raises:
      FolderError: when it is no run folder.
    """
    config = read_config(folder)
    notes: list[str] = []
    records = read_records(folder, notes)
    samples = _pictured(folder.root, _lines(folder.samples, notes), notes)
    if not records:
        notes.append("There are no metrics yet.")
    notes += _gaps(records)
    done = max((record["step"] for record in records if record["split"] == "train"), default=0)
    steps = config.get("train", {}).get("steps")
    budget = goodput([record for record in records if record["split"] == "train"])
    finished = any(record["split"] == "test" for record in records)
    if not finished:
        notes.append(f"The run has not finished: it stands at step {done:,}{f' of {steps:,}' if steps else ''}.")
    return Report(
        title=folder.root.resolve().name,
        facts={**_facts(config), "steps": f"{done:,}", **({} if budget is None else {"time": budget})},
        records=[{n: value for n, value in each.items() if n not in (*NAMES, counted(each))} for each in records],
        samples=samples if finished else [],  # an earlier end's samples are not this run's any more
        confusion=read_confusion(folder.root) if finished else None,
        profile=_profile(folder.root / FOLDER, notes),
        config=config,
        headline=next((str(each["headline"]) for each in _evaluators(config) if "headline" in each), ""),
        notes=tuple(notes),
    )


def read_records(folder: RunFolder, notes: list[str]) -> list[dict[str, Any]]:
    """Read what a run has measured; what cannot be read becomes a note."""
    return [record for record in _lines(folder.metrics, notes) if _is_record(record)]


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _profile(folder: Path, notes: list[str]) -> list[Operation] | None:
    if not folder.is_dir():
        return None
    try:
        return operations(folder) or None
    except (ValueError, KeyError, IndexError) as error:
        notes.append(f"The profile could not be read: {error}.")
        return None


def _evaluators(config: dict[str, Any]) -> list[dict[str, Any]]:
    found = config.get("evaluators")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _facts(config: dict[str, Any]) -> dict[str, str]:
    """Name the kind of the experiment, and those of a recipe's parts."""
    named = {"experiment": config, "data": config.get("data"), "objective": config.get("objective")}
    kinds = {name: value.get("type") for name, value in named.items() if isinstance(value, dict)}
    return {name: str(kind or "?").split(":")[-1] for name, kind in kinds.items() if kind or name == "experiment"}


def _lines(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Read JSON objects, one a line; count what cannot be read, such as a line cut short by a kill."""
    if not path.is_file():
        return []
    found, bad = [], 0
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        if not line:
            continue
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if isinstance(value, dict):
            found.append(value)
        else:
            bad += 1
    if bad:
        notes.append(f"{bad:,} line{'s' if bad > 1 else ''} of {path.name} could not be read.")
    return found


def _pictured(root: Path, samples: list[dict[str, Any]], notes: list[str]) -> list[dict[str, Any]]:
    """Replace the names of files by the images and audio in them; count those that are not there."""
    files = "picture", "whole", "audio"
    found = [{**s, **{name: read_media(root, s[name]) for name in files if name in s}} for s in samples]
    there = [sample for sample in found if sample.get("picture", "") is not None]
    if missing := len(found) - len(there):
        notes.append(f"{missing:,} image{'s' if missing > 1 else ''} of samples could not be read.")
    return there


def _is_record(value: dict[str, Any]) -> bool:
    step = value.get("step")
    return isinstance(step, int) and not isinstance(step, bool) and isinstance(value.get("split"), str)


def _gaps(records: list[dict[str, Any]]) -> list[str]:
    """Return for which metrics, from which step on, there are values that are no numbers."""
    first: dict[tuple[str, str], int] = {}
    for record in records:
        for name, value in record.items():
            if name not in ("step", "split") and not is_number(value):
                first.setdefault((record["split"], name), record["step"])
    return [f"{split} {name} was not a finite number at step {step:,}." for (split, name), step in first.items()]
