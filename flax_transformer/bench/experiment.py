"""An experiment as something to measure: its model, optimizer and objective, with a batch of the shapes it trains on.

What `bench` and `plan` know of experiments stands in this file alone.
"""

import io
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import partial_eval

from flax_transformer.bench.family import FAMILIES, Batch
from flax_transformer.bench.workload import Size, Workload, changed, compute_type, from_config
from flax_transformer.task.experiment import Experiment, option_type
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.spec import Spec, sized
from flax_transformer.train.carry import NOTHING, Objective, carry_of
from flax_transformer.train.finetune import freeze
from flax_transformer.train.folder import RunFolder


def is_experiment(value: Any) -> bool:
    """Say whether a value of a file is an experiment that can be measured."""
    return isinstance(value, Experiment)


def from_experiment(name: str, experiment: Experiment, size: Size, options: Sequence[str] = ()) -> Workload:
    """Make the workload of an experiment.

    Args:
      options: as on its own command line.

    Raises:
      ValueError: for options it does not have, and for sizes that it decides itself.
    """
    experiment = _with_options(experiment, options)
    training = {
        "optimizer": experiment.optimizer,
        "steps": experiment.train.steps,
        "mesh": experiment.mesh,
        "accumulate": experiment.train.accumulate,
        "ema": experiment.train.ema,
    }
    if hasattr(getattr(experiment, "examples", None), "planned"):
        return _from_plan(name, experiment, size, training)
    if size != Size(dtype=size.dtype, remat=size.remat, dropout=size.dropout):
        raise ValueError(
            f"{name} decides its own shapes: batch, length and vocab are for presets and translation, "
            "documents for presets"
        )
    config = changed(getattr(experiment, "model", None), size)
    if config is not None:
        experiment = replace(experiment, model=config)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        task = experiment.task(RunFolder(Path(folder)))
        batch = jax.tree.map(jax.numpy.asarray, next(iter(task.batches)))
    if task.objective is None:
        raise ValueError(f"{name} trains by a step of its own, which is not measured; only objectives are")
    objective = freeze(task.objective, experiment.optimizer.trainable)
    init = task.init if task.model is None else lambda key: task.model
    training |= {"init": init, "objective": objective, "batch": batch}
    if type(config) in FAMILIES:
        return from_config(name, config, Size(), **training)
    leading = jax.tree.leaves(batch)[0].shape
    return Workload(
        name=name,
        dtype=compute_type(config),
        shape={"rows": leading[0]},
        forward=partial(_loss, name, task.objective),
        items=count_items(objective, jax.eval_shape(init, jax.random.key(0)), batch),
        **training,
    )


def _loss(name: str, objective: Objective, model: Any, rows: Batch) -> jax.Array:
    if carry_of(objective) is not NOTHING:
        raise ValueError(f"{name} carries state from step to step, so it is measured in training alone: --what train")
    return objective(model, rows, key=None)[0]


def count_items(objective: Callable[..., Any], model: Any, batch: Batch) -> int | None:
    """Compute what an objective counts in a batch, without the model; None where it takes the model to know.

    Args:
      model: abstract.
    """

    def count(model: Any, batch: Batch) -> jax.Array:
        return objective(model, batch, key=jax.random.key(0))[1]["count"]

    if carry_of(objective) is not NOTHING:
        return None
    closed = jax.make_jaxpr(count)(model, batch)
    needed, used = partial_eval.dce_jaxpr(closed.jaxpr, [True])
    parameters = len(jax.tree.leaves(model))
    if any(used[:parameters]):
        return None
    rows = [leaf for leaf, is_used in zip(jax.tree.leaves(batch), used[parameters:], strict=True) if is_used]
    return round(float(core.jaxpr_as_fun(core.ClosedJaxpr(needed, closed.consts))(*rows)[0]))


def _from_plan(name: str, experiment: Recipe, size: Size, training: dict) -> Workload:
    """Take the longest batches that a recipe plans, and its vocabulary: no data is read."""
    planned = experiment.examples.planned(size.length)
    spec = Spec(uses=(), vocab=size.vocab or planned["vocab"], multiple=planned["multiple"])
    size = replace(size, batch=size.batch or planned["batch"], length=planned["length"], vocab=None)
    return from_config(name, sized(experiment.model, spec), size, objective=experiment.objective, **training)


def _with_options(experiment: Experiment, options: Sequence[str]) -> Experiment:
    """Change an experiment as its own command line would."""
    import tyro

    if not options:
        return experiment
    said = io.StringIO()
    try:
        with redirect_stderr(said), redirect_stdout(said):
            kind = option_type(experiment)
            return tyro.cli(kind, default=experiment, args=list(options), prog="options", console_outputs=True)
    except SystemExit as error:
        words = " ".join(re.sub(r"[╭╮╰╯│─]", " ", said.getvalue()).split())
        raise ValueError(f"the experiment does not take {' '.join(options)}: {words[:400]}") from error
