"""Several runs beside each other: which differ in the seed alone, what all have measured, what else differs.

It knows runs by what they have recorded: numbers, samples, settings.
"""

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from flax_transformer.frozen import frozen
from flax_transformer.listing import last_parts, listed
from flax_transformer.report.image_attention import ImageAttention
from flax_transformer.report.page import TextAttention
from flax_transformer.report.run import is_number
from flax_transformer.train.progress import percent
from flax_transformer.train.time_budget import CPU, SPEED, TOTAL, counted

SEED = "train.seed"
"""The setting in which runs of one group differ."""
OBJECTIVE_METRICS = ("loss", "perplexity")
"""Metrics, or beginnings of their names, that mean the same only of one objective."""


class Metric(NamedTuple):
    """What was measured, and on which split."""

    split: str
    name: str


class Score(NamedTuple):
    """A metric of the runs of a group."""

    mean: float
    spread: float | None
    """The sample standard deviation; None of a single run."""
    count: int


@frozen
class ComparedRun:
    """A run as it is compared; a part that is None is not known of it."""

    name: str
    config: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]] = ()
    """All of metrics.jsonl."""
    samples: Sequence[Mapping[str, Any]] = ()
    parameters: int | None = None
    flops: int | None = None
    """Model FLOPs of a step."""
    text_attention: Sequence[TextAttention] = ()
    images: Sequence[ImageAttention] = ()
    notes: tuple[str, ...] = ()
    """What the reader must know, a sentence each."""

    def last(self, metric: Metric) -> float | None:
        """Return the newest value of a metric."""
        found = (r[metric.name] for r in reversed(self.records) if r["split"] == metric.split and metric.name in r)
        value = next(found, None)
        return float(value) if is_number(value) else None

    @property
    def seed(self) -> Any:
        """What the run began from."""
        return flattened(self.config).get(SEED)

    @property
    def unit(self) -> str | None:
        """What the run has counted as it trained; None where it has not."""
        names = [counted(record) for record in self.records if record["split"] == "train"]
        return names[0] if names and len(set(names)) == 1 else None

    def total(self, name: str) -> float | None:
        """Add up what is recorded of every window of training; None where it is not."""
        found = [record.get(name) for record in self.records if record["split"] == "train"]
        return float(sum(found)) if found and all(map(is_number, found)) else None

    def speed(self) -> tuple[float, str] | None:
        """Return the median of the speeds that were measured, and what was counted."""
        for name in (name for record in self.records if record["split"] == "train" for name in record):
            if name.endswith(SPEED):
                values = [r[name] for r in self.records if r["split"] == "train" and is_number(r.get(name))]
                return (float(statistics.median(values)), name.removesuffix(SPEED)) if values else None
        return None


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed."""

    name: str
    runs: tuple[ComparedRun, ...]

    @property
    def first(self) -> ComparedRun:
        """The run that stands for the group where only one can."""
        return self.runs[0]

    def score(self, metric: Metric) -> Score | None:
        """Join what the runs have of a metric, fractions in percent; None where none has it."""
        found = [run.last(metric) for run in self.runs]
        return self._joined(value if value is None else percent(metric.name, value) for value in found)

    def mean(self, of: Callable[[ComparedRun], int | float | None]) -> float | None:
        """Average what is known of the runs."""
        found = self._joined(map(of, self.runs))
        return None if found is None else found.mean

    def _joined(self, values: Any) -> Score | None:
        known = [float(value) for value in values if value is not None]
        if not known:
            return None
        return Score(statistics.mean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


def grouped(runs: Sequence[ComparedRun]) -> list[Group]:
    """Put runs together that differ in nothing but the seed, in the order in which they come.

    >>> runs = [ComparedRun(name=f"lstm-{n}", config={"train": {"seed": n}}) for n in range(2)]
    >>> [(group.name, len(group.runs)) for group in grouped([*runs, ComparedRun(name="gru", config={"cell": 1})])]
    [('lstm', 2), ('gru', 1)]
    """
    found: dict[Any, list[ComparedRun]] = {}
    for run in runs:
        settings = {path: value for path, value in flattened(run.config).items() if path != SEED}
        found.setdefault(tuple(sorted(settings.items())), []).append(run)
    taken: list[str] = []
    for members in found.values():
        name = _shared_name([run.name for run in members])
        clash = name in taken or (len(members) > 1 and any(run.name == name for run in runs if run not in members))
        taken.append(", ".join(run.name for run in members) if clash else name)
    return [Group(name, tuple(members)) for name, members in zip(taken, found.values(), strict=True)]


def _shared_name(names: Sequence[str]) -> str:
    """Return what names of several runs begin with, without what then names the seed."""
    if len(names) == 1:
        return names[0]
    same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    begins = "".join(letters[0] for letters in same).rstrip("-_. /0123456789")
    for word in ("seed", "run"):
        begins = begins.removesuffix(word).rstrip("-_. /")
    return begins or ", ".join(names)


def flattened(config: Any, path: str = "") -> dict[str, str | int | float | None]:
    """List the settings of a config by their paths; a type, or a function, by its name alone."""
    if isinstance(config, Mapping) and "function" in config:
        return {path: str(config["function"]).split(":")[-1]}
    if isinstance(config, Mapping):
        found = {}
        for name, value in config.items():
            if name == "type":
                found[path or "experiment"] = str(value).split(":")[-1]
            else:
                found |= flattened(value, f"{path}.{name}" if path else str(name))
        return found
    if isinstance(config, list | tuple):
        if any(isinstance(each, Mapping) for each in config):
            return {at: v for n, each in enumerate(config) for at, v in flattened(each, f"{path}.{n}").items()}
        return {path: ", ".join(map(_spelled, config)) or "none"}
    return {path: _spelled(config)}


def _spelled(value: Any) -> str:
    return {None: "none", True: "yes", False: "no"}[value] if value is None or isinstance(value, bool) else str(value)


def settings(groups: Sequence[Group]) -> dict[str, list[str | None]]:
    """Return the settings in which groups differ, by path, one value a group; None where a group has no such setting.

    Of folders and files the last parts, where these tell them apart.
    """
    every = [flattened(group.first.config) for group in groups]
    paths = dict.fromkeys(path for one in every for path in one)
    rows = {path: [one.get(path) for one in every] for path in paths if path != SEED}
    found = {}
    for path, values in sorted(rows.items()):
        if len(set(values)) > 1:
            short = last_parts(values)
            found[path] = short if len(set(short)) == len(set(values)) else values
    return found


def measured(runs: Sequence[ComparedRun]) -> list[Metric]:
    """List what any of the runs has measured of how good it is: of its test first, then of validation, losses last."""
    found = {
        Metric(record["split"], name)
        for run in runs
        for record in run.records
        for name, value in record.items()
        if record["split"] in ("test", "validation") and name not in ("step", "split") and is_number(value)
        if not name.endswith(SPEED)
    }
    order = {name: at for at, name in enumerate(n for run in runs for record in run.records for n in record)}
    return sorted(found, key=lambda metric: (metric.split != "test", _of_objective(metric.name), order[metric.name]))


def _of_objective(name: str) -> bool:
    return name.startswith(OBJECTIVE_METRICS)


def common(runs: Sequence[ComparedRun]) -> list[Metric]:
    """List the metrics that all runs have; losses count only among runs of one objective."""
    objectives = {flattened(run.config).get("objective") or flattened(run.config).get("experiment") for run in runs}
    return [
        metric
        for metric in measured(runs)
        if all(run.last(metric) is not None for run in runs)
        and (len(objectives) == 1 or not _of_objective(metric.name))
    ]


def choose_metric(runs: Sequence[ComparedRun], asked: str | None = None, headlines: Sequence[str] = ()) -> Metric:
    """Choose what runs are compared by first.

    Args:
      asked: a metric that some run has.
      headlines: metrics that are taken before others.

    Raises:
      ValueError: where nothing was measured, none has what is asked for, or no metric is common to all.
    """
    every = measured(runs)
    if not every:
        raise ValueError(f"nothing has been measured yet by {listed(run.name for run in runs)}")
    if asked is not None:
        named = [metric for metric in every if asked in (metric.name, f"{metric.split} {metric.name}")]
        if not named:
            has = ", ".join(dict.fromkeys(metric.name for metric in every))
            raise ValueError(f"a metric must be one that the runs have, {has}, got {asked!r}")
        return max(named, key=lambda metric: sum(run.last(metric) is not None for run in runs))
    shared = common(runs)
    if not shared:
        each = [f"{r.name} has {', '.join(dict.fromkeys(m.name for m in measured([r]))) or 'none'}" for r in runs]
        raise ValueError(f"runs must have a metric in common to be compared, got none: {'; '.join(each)}")
    return next((metric for name in headlines for metric in shared if metric.name == name), shared[0])


def positions(run: ComparedRun) -> dict[str, list[float | None]]:
    """Return for each record how far the run was, by steps, items, FLOPs and seconds.

    A record of validation is where that of training of the same step is. What was not recorded is None.
    """
    sums = {"items": run.unit, "seconds": TOTAL, "cpu": CPU}
    known = {axis: name for axis, name in sums.items() if name is not None and run.total(name) is not None}
    far: dict[int, dict[str, float]] = {}
    totals = dict.fromkeys(known, 0.0)
    trained = {record["step"]: record for record in run.records if record["split"] == "train"}
    for step in sorted(trained):
        totals = {axis: totals[axis] + trained[step][name] for axis, name in known.items()}
        far[step] = totals
    steps = [record["step"] for record in run.records]
    found: dict[str, list[float | None]] = {"step": [float(step) for step in steps]}
    found |= {axis: [far.get(step, {}).get(axis) for step in steps] for axis in sums}
    return {**found, "flops": [None if run.flops is None else float(step * run.flops) for step in steps]}
