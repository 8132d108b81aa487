"""An experiment as something to measure: its model, optimizer and objective, with a batch of the shapes it trains on.

What `bench` and `plan` know of experiments stands in this file alone.
"""

import io
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import partial_eval

from flax_transformer.bench.workload import Batch, Size, Workload, changed, compute_type, from_config, measurable
from flax_transformer.task.experiment import Experiment, Task, option_type
from flax_transformer.task.spec import Spec, sized
from flax_transformer.task.start import StartConfig
from flax_transformer.train.batch_layout import closed
from flax_transformer.train.carry import NOTHING, carry_of
from flax_transformer.train.finetune import freeze
from flax_transformer.train.folder import RunFolder


def from_experiment(name: str, experiment: Experiment, size: Size, options: Sequence[str] = ()) -> Workload:
    """Make the workload of an experiment.

    A recipe that plans its batches gives the longest, and no data is read; of any other, and of one that begins with a
    checkpoint, the first batch is taken.

    Args:
      options: as on its own command line.

    Raises:
      ValueError: for options it does not have, and for sizes that it decides itself.
    """
    if size.weights is not None:
        raise ValueError(
            f"{name} trains, and so has no weights={size.weights!r}: those are for presets and checkpoints"
        )
    experiment = with_options(experiment, options)
    training = {name: getattr(experiment, name) for name in ("optimizer", "train", "mesh")}
    if size.accumulate is not None:
        training["train"] = replace(experiment.train, accumulate=size.accumulate)
    given = getattr(experiment, "init", "") or isinstance(getattr(experiment, "model", None), StartConfig)
    if hasattr(getattr(experiment, "examples", None), "planned") and not given:
        planned = experiment.examples.planned(size.length)
        spec = Spec(uses=(), vocab=size.vocab or planned.get("vocab"), multiple=planned.get("multiple"))
        config = sized(experiment.model, spec)
        size = replace(size, batch=size.batch or planned["batch"], length=planned.get("length"), vocab=None)
        return from_config(name, config, size, objective=experiment.objective, **training)
    kept = ("dtype", "params", "remat", "dropout", "accumulate", "cache")
    if size != Size(**{name: getattr(size, name) for name in kept}):
        raise ValueError(
            f"{name} decides its own shapes: batch, length and vocab are for presets and translation, "
            "documents for presets"
        )
    if (config := getattr(experiment, "model", None)) is not None:
        config = changed(config, size)
        experiment = replace(experiment, model=config)
    with opened(experiment) as task:
        batch = jax.tree.map(jax.numpy.asarray, next(iter(task.batches)))
    if task.objective is None:
        raise ValueError(f"{name} trains by a step of its own, which is not measured; only objectives are")
    objective = freeze(task.objective, experiment.optimizer.trainable)
    init = task.init if task.model is None else lambda key: task.model
    training |= {"init": init, "objective": objective, "batch": batch}
    model = jax.eval_shape(init, jax.random.key(0))
    made = getattr(model, "cfg", None)  # sized by the data
    if (known := measurable(made)) and isinstance(model, known) and isinstance(batch, Mapping) and "inputs" in batch:
        return from_config(name, made, Size(cache=size.cache), **training)

    def loss(model: Any, rows: Batch) -> jax.Array:
        if carry_of(objective) is not NOTHING:
            raise ValueError(
                f"{name} carries state from step to step, so it is measured in training alone: --what train"
            )
        return task.objective(model, rows, key=None)[0]

    items = count_items(objective, model, batch)
    shape = {"rows": jax.tree.leaves(batch)[0].shape[0]}
    return Workload(name=name, dtype=compute_type(config), shape=shape, forward=loss, items=items, **training)


@contextmanager
def opened(experiment: Experiment) -> Iterator[Task]:
    """Open an experiment's data in a folder that is gone in the end; what is said of them goes to standard error."""
    with tempfile.TemporaryDirectory() as folder:
        with redirect_stdout(sys.stderr):
            task = experiment.task(RunFolder(Path(folder)))
        with closed(task.batches):
            yield task


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


def with_options(experiment: Experiment, options: Sequence[str]) -> Experiment:
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


def option_changes(experiment: Experiment, size: Size) -> Iterator[tuple[str, Any]]:
    """Return what a size changes of an experiment, but for its shapes, as options of its own command line."""
    if (model := getattr(experiment, "model", None)) is not None:
        yield from _differences(model, changed(model, size), "model")
    if size.accumulate not in (None, experiment.train.accumulate):
        yield "train.accumulate", size.accumulate


def _differences(before: Any, after: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Return in which fields one config differs from another of its kind, at any depth."""
    if isinstance(before, tuple):
        pairs = [(str(index), *both) for index, both in enumerate(zip(before, after, strict=True))]
    else:
        pairs = [(name, getattr(before, name), getattr(after, name)) for name in vars(before)]
    for name, old, new in pairs:
        at = f"{path}.{name.replace('_', '-')}"
        if is_dataclass(old) or (isinstance(old, tuple) and old and is_dataclass(old[0])):
            yield from _differences(old, new, at)
        elif old != new:
            yield at, new
