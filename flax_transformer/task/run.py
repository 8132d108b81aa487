"""A run folder opened again: its recipe, its model as it stands, its tokenizer."""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax

from flax_transformer.data.text import Tokenizer, load_tokenizer
from flax_transformer.models.preset import abstract
from flax_transformer.task.start import start_seq2seq
from flax_transformer.task.translator import Search, Translator
from flax_transformer.train.carry import new_carried
from flax_transformer.train.checkpoint import Checkpoints, average_models
from flax_transformer.train.config import parse_object, to_json
from flax_transformer.train.folder import PACKAGES, FolderError, RunFolder, read_experiment, rebuild

EXPORT = "export"
"""Folder inside a run's that holds the finished model as a Hugging Face checkpoint."""

MODEL = "model.json"
"""File of a run's folder that has the config of its model, sized by the data."""


@dataclass(frozen=True)
class Run:
    """A run as it stands, finished or not."""

    recipe: Any
    model: Any
    """As it is evaluated: with the statistics of batch norms that training carries, with kernels of few bits."""
    tokenizer: Tokenizer | None
    """None where the run reads no text."""


def write_model_config(folder: RunFolder, config: Any) -> None:
    """Write the config of a run's model, for `open_run`."""
    (folder.root / MODEL).write_text(json.dumps(to_json(config), indent=2) + "\n")


def read_model_config(folder: RunFolder, packages: tuple[str, ...] = PACKAGES) -> Any:
    """Read the config of a run's model, sized by its data; `packages` as `open_run`'s.

    Raises:
      FolderError: when the folder does not say it, or says what is not there or may not be imported.
    """
    path = folder.root / MODEL
    if not path.is_file():
        raise FolderError(f"{folder.root} does not say what its model is: it has no {MODEL}")
    try:
        data = parse_object(path.read_bytes(), path)
    except ValueError as error:
        raise FolderError(str(error)) from error
    return rebuild(folder, data, path, packages)


def open_run(workdir: str | Path, packages: tuple[str, ...] = PACKAGES) -> Run:
    """Open the run of a recipe with its newest checkpoints, averaged as the recipe says.

    Args:
      packages: where its types and functions may come from; add your own for a run that has parts of yours.

    Raises:
      FolderError: when the folder is no run of a recipe, or has no checkpoint yet.
      CheckpointError: when a checkpoint cannot be read.
    """
    folder = RunFolder(Path(workdir))
    recipe = read_experiment(folder, packages)
    tokenizer = load_tokenizer(folder.tokenizer) if folder.tokenizer.is_file() else None
    try:
        model = abstract(read_model_config(folder, packages))
    except (ValueError, TypeError) as error:
        raise FolderError(f"{folder.root / MODEL}: {error}") from error
    with Checkpoints(folder.checkpoints, keep=None) as checkpoints:
        steps = checkpoints.steps()[-recipe.train.average :]
        if not steps:
            raise FolderError(f"{workdir} has no checkpoint yet")
        carry = recipe.carry
        carried = jax.eval_shape(partial(new_carried, carry), model, jax.random.key(0))
        if recipe.train.ema:
            average = carry.whole(carry.trained(model), carried)
            found = checkpoints.restore({"ema": average})[0]["ema"]
        else:
            found = average_models(checkpoints, carry.trained(model), steps, carry, carried)
        return Run(recipe, recipe.finished(found), tokenizer)


def open_translator(workdir: str | Path, packages: tuple[str, ...] = PACKAGES) -> tuple[Translator, Search]:
    """Open a finished or running translation run, and how it searches; arguments as `open_run`'s.

    Raises:
      FolderError: when the folder is no translation run, or has no checkpoint yet.
      CheckpointError: when the checkpoint cannot be read.
    """
    evaluators = getattr(read_experiment(RunFolder(Path(workdir)), packages), "evaluators", ())
    search = next((each.search for each in evaluators if hasattr(each, "search")), None)
    if search is None:
        raise FolderError(f"{workdir} is not a translation run: nothing in its recipe translates")
    run, export = open_run(workdir, packages), Path(workdir) / EXPORT
    if run.tokenizer is None and run.recipe.init and export.is_dir():  # it has that of the checkpoint it began with
        return Translator(run.model, start_seq2seq(str(export))), search
    if run.tokenizer is None:
        raise FolderError(f"{workdir} has lost its {RunFolder(Path(workdir)).tokenizer.name}")
    return Translator(run.model, run.tokenizer), search
