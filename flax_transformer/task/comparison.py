"""Several runs gathered for a page: what their folders say, samples that can be read, attention in sentences of all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flax_transformer.atomic import write_file
from flax_transformer.models.preset import abstract
from flax_transformer.report import read_run
from flax_transformer.report.comparison import ComparedRun, choose_metric, grouped
from flax_transformer.report.comparison_page import Comparison, matched, render_comparison, sample_key
from flax_transformer.report.run import read_records
from flax_transformer.task.checkpoint import open_checkpoint
from flax_transformer.task.report import draw_samples
from flax_transformer.task.run import EXPORT, MODEL, open_run, read_model_config
from flax_transformer.task.translation import DRAWN, SHOWN, has_tokens
from flax_transformer.train.checkpoint import CheckpointError
from flax_transformer.train.folder import FolderError, RunFolder, read_experiment
from flax_transformer.train.state import parameter_count

PAGE = "comparison.html"
"""File that a comparison is written to, unless another is asked for."""

Cost = Callable[[RunFolder], int]
"""`cost(folder)` counts the model FLOPs of a run's step; ValueError says why it cannot."""


def gather(workdirs: Sequence[str | Path], metric: str | None = None, cost: Cost | None = None) -> Comparison:
    """Read runs to be compared, finished or not, of any experiments.

    Args:
      metric: what they are compared by first; by default a headline that all have, or else what they have in common.
      cost: of a step.

    Raises:
      FolderError: when a folder is no run.
      ValueError: fewer than two runs, one of them twice, or none that have a metric in common.
    """
    if buckets := [str(each) for each in workdirs if "://" in str(each)]:
        raise ValueError(f"a run folder is a path, got {buckets[0]}; a bucket must be mounted")
    folders = [RunFolder(Path(workdir)) for workdir in workdirs]
    places = [folder.root.resolve() for folder in folders]
    if len(places) < 2:
        raise ValueError(f"there must be at least two runs to compare, got {len(places)}")
    if twice := [str(place) for place in dict.fromkeys(places) if places.count(place) > 1]:
        raise ValueError(f"a run is compared with others, got {twice[0]} more than once")
    read = [_read(folder, name, cost) for folder, name in zip(folders, _names(places), strict=True)]
    runs, headlines = [run for run, _ in read], [headline for _, headline in read if headline]
    chosen = choose_metric(runs, metric, headlines)
    return Comparison(
        runs=tuple(_drawn(runs, dict(zip((run.name for run in runs), folders, strict=True)))), metric=chosen
    )


def write_comparison(comparison: Comparison, path: str | Path = PAGE) -> Path:
    """Write the page of a comparison; the file appears whole or not at all.

    Raises:
      OSError: when it cannot be written.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return write_file(path, render_comparison(comparison))


def _names(places: Sequence[Path]) -> list[str]:
    """Call runs by as much of their paths' ends as tells them apart."""
    for length in range(1, max(len(place.parts) for place in places) + 1):
        names = ["/".join(place.parts[-length:]) for place in places]
        if len(set(names)) == len(names):
            break
    return names


def model_config(folder: RunFolder) -> Any:
    """Read the config of a run's model, sized by its data.

    Raises:
      ValueError: the run does not say it.
      FolderError: it says what is not there, or may not be imported.
    """
    if not (folder.root / MODEL).is_file():
        raise ValueError(f"it has no {MODEL}")
    return read_model_config(folder)


def _read(folder: RunFolder, name: str, cost: Cost | None) -> tuple[ComparedRun, str]:
    """Read a run, and the metric it ended with."""
    report, notes = read_run(folder), []
    parameters = flops = None
    try:
        parameters = parameter_count(abstract(model_config(folder)))
        flops = None if cost is None else cost(folder)
    except (ValueError, FolderError) as error:
        what = "the FLOPs of a step" if parameters else "parameters and the FLOPs of a step"
        notes.append(f"{name}: {what} are not known: {error}.")
    try:
        evaluators = read_experiment(folder).evaluators
        headline = next((each.metric for each in evaluators if each.metric), report.headline)
    except (FolderError, AttributeError):  # of a program that is not here
        headline = report.headline
    notes += [f"{name}: {note}" for note in report.notes]
    run = ComparedRun(
        name=name, config=report.config, records=read_records(folder, []), samples=report.samples or (),
        parameters=parameters, flops=flops, notes=tuple(notes),
    )  # fmt: skip
    return run, headline


def _drawn(runs: Sequence[ComparedRun], folders: Mapping[str, RunFolder]) -> list[ComparedRun]:
    """Draw what the first run of each group attends to in a few samples that all have."""
    first = [group.first for group in grouped(runs)]
    of = {run.name: {sample_key(sample): sample for sample in run.samples} for run in first}
    keys = [key for key in matched([run.samples for run in first]) if all(key in each for each in of.values() if each)]
    fitting = [key for key in keys if all(_fits(each[key]) for each in of.values() if each)]
    chosen = fitting[:: max(len(fitting) // SHOWN, 1)][:SHOWN]
    drawn = {run.name: _draw(run, folders[run.name], [of[run.name][key] for key in chosen]) for run in first if chosen}
    return [drawn.get(run.name, run) for run in runs]


def _fits(sample: Mapping[str, Any]) -> bool:
    """Return whether an image of a sample's attention fits a page."""
    short = 0 < len(sample["tokens"]) <= DRAWN if "tokens" in sample and has_tokens(dict(sample)) else True
    return short and len(str(sample.get("source", "")).split()) < DRAWN


def _draw(run: ComparedRun, folder: RunFolder, samples: Sequence[Mapping[str, Any]]) -> ComparedRun:
    """Draw what a run's model attends to in samples of it; where that cannot be, say why."""
    if not samples:
        return run
    text_attention, images, notes = [], [], []
    try:
        evaluators = [each for each in getattr(read_experiment(folder), "evaluators", ()) if each.draws]
        if evaluators:
            opened = open_run(folder.root)
            for evaluator in evaluators:
                made, why = evaluator.text_attention(opened.model, opened.tokenizer, samples)
                text_attention, notes = [*text_attention, *made], [*notes, *why]
        elif any((folder.root / EXPORT).glob("*.safetensors")):
            made, seen, notes = draw_samples(open_checkpoint(str(folder.root)), samples)
            text_attention, images = made or (), seen or ()
    except (FolderError, CheckpointError, ValueError, OSError) as error:
        notes = [f"no attention is shown: {error}."]
    said = tuple(f"{run.name}: {note[:1].lower()}{note[1:]}" for note in notes)
    return replace(run, text_attention=tuple(text_attention), images=tuple(images), notes=(*run.notes, *said))
