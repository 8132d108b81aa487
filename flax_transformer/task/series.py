"""Runs that belong together: one after another, each once, however often the series is begun."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from flax_transformer.task.experiment import Experiment, train
from flax_transformer.train.folder import RunFolder


def train_all(experiments: Mapping[str, Experiment], root: str | os.PathLike) -> dict[str, dict[str, Any]]:
    """Run experiments, each in the folder below `root` that its name says, and give what their tests measured.

    A run that has been tested is not run again, whatever its experiment; one that was cut off goes on.

    Raises:
      FolderError, ValueError, NotFinite, CheckpointError, Interrupted, Preempted: as `train`.
    """
    found = {}
    for number, (name, experiment) in enumerate(experiments.items(), 1):
        folder = RunFolder(Path(root) / name)
        if (tested := read_test(folder)) is None:
            print(f"\n{name}, {number} of {len(experiments)}", flush=True)
            train(experiment, folder.root)
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
