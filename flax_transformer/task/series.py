"""Runs that belong together: one after another, each once, however often the series is begun; equal budgets."""

import contextlib
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import jax

from flax_transformer.atomic import write_file
from flax_transformer.task.command import quietly
from flax_transformer.task.experiment import Experiment, begin_training, guarded, train
from flax_transformer.train.config import to_json
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.step import jit_train_step

BUDGET = "budget.json"
"""File of a series' folder that says what a step of each experiment was measured to cost."""
BATCHES = 24
"""Training batches that a step is measured on."""


def train_all(
    experiments: Mapping[str, Experiment], root: str | os.PathLike, *, programs: str = ""
) -> dict[str, dict[str, Any]]:
    """Run experiments, each in the folder below `root` that its name says, and give what their tests measured.

    A run that has been tested is not run again, whatever its experiment; one that was cut off goes on.

    Args:
      programs: as `train`'s.

    Raises:
      FolderError, ValueError, NotFinite, CheckpointError, Interrupted, Preempted: as `train`.
    """
    found = {}
    for number, (name, experiment) in enumerate(experiments.items(), 1):
        folder = RunFolder(Path(root) / name)
        if (tested := read_test(folder)) is None:
            print(f"\n{name}, {number} of {len(experiments)}", flush=True)
            train(experiment, folder.root, programs=programs)
            jax.clear_caches()
            tested = read_test(folder)
        found[name] = tested
    return found


def read_test(folder: RunFolder) -> dict[str, Any] | None:
    """Read what a run's test has measured; None where it has not been tested."""
    if not folder.metrics.is_file():
        return None
    records = map(json.loads, folder.metrics.read_text().splitlines())
    return next((record for record in records if record.get("split") == "test"), None)


def scheduled(
    experiment: Experiment, steps: int, seed: int, *, warmup: int = 20, evaluations: int = 1, **changes: Any
) -> Experiment:
    """Set the number of steps of an experiment: the learning rate rises in one of `warmup` of them.

    Args:
      evaluations: how often it is measured on validation data.
      changes: other fields of its `train`.
    """
    every = {"log_every": max(steps // 10, 1), "eval_every": max(steps // evaluations, 1)}
    schedule = replace(experiment.optimizer.schedule, warmup=max(steps // warmup, 1))
    return replace(
        experiment,
        optimizer=replace(experiment.optimizer, schedule=schedule),
        train=replace(experiment.train, steps=steps, seed=seed, **{**every, **changes}),
    )


def step_seconds(experiment: Experiment, batches: int = BATCHES) -> float:
    """Measure what a step takes of the processors, all together, on training batches as they come.

    Compiling is left out, and what other programs take. On another device than the CPU it is seconds by the clock.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        task = experiment.task(RunFolder(Path(folder)))
        state, _, step = begin_training(experiment, task)
        step, stream = jit_train_step(step, state), iter(task.batches)
        taken = [next(stream) for _ in range(batches)]
    clock = time.process_time if jax.default_backend() == "cpu" else time.monotonic
    new = {_shapes(batch): batch for batch in taken}
    for batch in new.values():  # each compiles a program
        state, _ = step(state, batch)
    jax.block_until_ready(state)
    began = clock()
    for batch in taken:
        state, metrics = step(state, batch)
        jax.block_until_ready(metrics)
    jax.block_until_ready(state)
    seconds = (clock() - began) / batches
    jax.clear_caches()
    return seconds


def _shapes(batch: Any) -> tuple:
    return tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(batch))


def budgeted_steps(name: str, experiment: Experiment, minutes: float, root: str | os.PathLike) -> int:
    """Count the steps of an experiment that fit into so many minutes of all processors together.

    What a step costs is measured once and kept in the series' folder, so that a series that goes on has the same steps.

    Args:
      name: of the experiment, whatever its seed.
      root: folder of the series.
    """
    path = Path(root) / BUDGET
    known = json.loads(path.read_text()) if path.is_file() else {}
    settings = {part: value for part, value in to_json(experiment).items() if part not in ("train", "track")}
    if known.get(name, {}).get("settings") != settings:
        print(f"{name}: measuring a step", flush=True)
        known[name] = {"seconds": step_seconds(experiment), "settings": settings}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps(known, indent=1) + "\n")
    seconds = known[name]["seconds"]
    steps = max(round(60 * minutes / seconds), 1)
    print(f"{name}: {seconds:.3g} s a step, {steps:,} steps", flush=True)
    return steps


def launch_series(default: Any, act: Callable[[Any], None], arguments: list[str] | None = None) -> None:
    """Read what a series is asked for from the command line, make it, and leave with the right exit code.

    Args:
      default: a config, whose fields are the options.
      act: makes the series.
      arguments: in place of the command line's.
    """
    import tyro

    about = sys.modules[type(default).__module__].__doc__
    with quietly():
        kind = Annotated[type(default), tyro.conf.arg(name="")]
        sys.exit(guarded(lambda: act(tyro.cli(kind, default=default, args=arguments, description=about))))
