"""Several runs compared: their page, and the cost of a step of each, counted without their data."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flax_transformer.bench.workload import Size, from_config
from flax_transformer.report.comparison_page import Comparison
from flax_transformer.task.comparison import PAGE, gather, model_config, write_comparison
from flax_transformer.train.finetune import freeze
from flax_transformer.train.folder import RunFolder, read_experiment


def compare(
    workdirs: Sequence[str | Path], out: str | Path = PAGE, metric: str | None = None
) -> tuple[Comparison, Path]:
    """Read runs, and write the page that shows them beside each other.

    Args:
      workdirs: folders of runs, of any experiments, finished or not.
      out: the file.
      metric: as `gather`'s.

    Raises:
      FolderError, ValueError: as `gather`.
      OSError: when the page cannot be written.
    """
    comparison = gather(workdirs, metric, step_flops)
    return comparison, write_comparison(comparison, out)


def step_flops(folder: RunFolder) -> int:
    """Count the model FLOPs of a training step of a run, on the longest batch that its recipe makes.

    It takes the recipe and the config of the model, not the data: a batch is made up by the model's `example_batch`.

    Raises:
      FolderError: when it is not the run of a recipe.
      ValueError: when nothing says how large its batches are, or how its model is fed.
    """
    recipe, config = read_experiment(folder), model_config(folder)
    if recipe.objective is None or recipe.lora is not None or hasattr(recipe.objective, "own_step"):
        raise ValueError("it does not train a whole model by an objective")
    training = {name: getattr(recipe, name) for name in ("optimizer", "train", "mesh")}
    objective = freeze(recipe.objective, recipe.optimizer.trainable)
    workload = from_config(folder.root.name, config, _size(recipe.examples), objective=objective, **training)
    try:
        return workload.facts(["train"]).flops["train"].model
    except (KeyError, TypeError, ValueError) as error:  # an objective that wants more of a batch than examples have
        raise ValueError(f"a made-up batch is none for its objective ({type(error).__name__}: {error})") from error


def _size(examples: Any) -> Size:
    """Find how large the batches of a recipe are."""
    if hasattr(examples, "planned"):
        planned = examples.planned()
        return Size(batch=planned["batch"], length=planned["length"])
    rows = getattr(examples, "rows", None)
    if not isinstance(rows, int):
        raise ValueError(f"{type(examples).__name__} does not say how many rows a batch has")
    length = getattr(examples, "positions", None) or getattr(examples, "length", None)
    return replace(Size(batch=rows), length=length if isinstance(length, int) else None)
