"""From a name to what is measured: a preset, or the experiment of a file with the batch shapes it trains on."""

import dataclasses
import importlib.util
import inspect
import io
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from flax_transformer.bench.family import FAMILIES, Batch, Count
from flax_transformer.models.preset import find_preset, module_of
from flax_transformer.nn import Precision, with_precision
from flax_transformer.parallel import MeshConfig
from flax_transformer.task.experiment import Experiment, option_type
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.spec import Spec, sized
from flax_transformer.train.finetune import freeze
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.optimizer import OptimizerConfig
from flax_transformer.train.schedule import ScheduleConfig

ADAM = OptimizerConfig(learning_rate=1e-4, schedule=ScheduleConfig(name="constant"))


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model and one batch, with what can be done to them."""

    name: str
    dtype: str
    """What matrices are multiplied in."""
    init: Callable[[jax.Array], Any]
    batch: Batch
    shape: dict[str, int]
    forward: Callable[[Any, Batch], Any]
    objective: Callable[..., Any]
    decode: Callable[[Any, Batch], Any] | None = None
    """None: there is no telling how."""
    ready: Callable[[Any], Any] = lambda model: model
    """Lays the model out for `decode`."""
    count: Callable[[Any, Batch], dict[str, Count]]
    optimizer: OptimizerConfig = ADAM
    steps: int = 1_000
    """Of the run whose schedule the optimizer follows."""
    remat: str = "none"
    """What the backward pass computes again."""
    mesh: MeshConfig = MeshConfig()
    accumulate: int = 1
    ema: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """What the command line asks for; None leaves it to the target."""

    batch: int | None = None
    length: int | None = None
    vocab: int | None = None
    dtype: str | None = None
    remat: str | None = None
    """A name in `nn.stack.REMAT`."""
    documents: int | None = None
    """Packed in each row of a decoder-only preset, each seeing itself alone."""
    dropout: float | None = None
    """Every rate of it; attention with dropout of its weights is not fused."""

    def __post_init__(self):
        for name in ("batch", "length", "vocab", "documents"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be a positive number, got {value}")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        if self.vocab is not None and self.vocab < 2:
            raise ValueError(f"vocab must be at least 2, got {self.vocab}")


def find_target(name: str, size: Size, options: Sequence[str] = ()) -> Workload:
    """Make the workload of a preset (`transformer_tiny`) or an experiment (`experiments/wmt14.py:base`).

    Args:
      options: of the experiment, as on its own command line.

    Raises:
      ValueError: when there is no such thing; the nearest names are told.
    """
    path, _, which = name.partition(":")
    if path.endswith(".py"):
        return _from_experiment(name, _with_options(find_experiment(Path(path), which), options), size)
    if options:
        raise ValueError(f"only experiments have options, got {' '.join(options)} for the preset {name}")
    make = find_preset(name)
    if size.vocab is not None and "vocab" not in inspect.signature(make).parameters:
        raise ValueError(f"{name} has no vocabulary to set, got vocab={size.vocab}")
    config = make() if size.vocab is None else make(size.vocab)
    return _from_config(name, config, size)


def find_experiment(path: Path, which: str = "") -> Experiment:
    """Load the experiment an experiment file defines: a global, or an entry of a global dict, named `which`.

    Raises:
      ValueError: when there is no such file or experiment, or several and none is named.
    """
    if not path.is_file():
        raise ValueError(f"an experiment must be a Python file, there is none at {path}")
    spec = importlib.util.spec_from_file_location(f"_bench_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    found = {}
    for name, value in vars(module).items():
        if isinstance(value, Experiment):
            found[name] = value
        elif isinstance(value, dict):
            found |= {str(key): entry for key, entry in value.items() if isinstance(entry, Experiment)}
    if not found:
        raise ValueError(f"{path} must define an Experiment as a global, it has none")
    if len(found) == 1 and not which:
        return next(iter(found.values()))
    if which not in found:
        asked = f"it has no {which!r}" if which else "say which"
        raise ValueError(f"{path} has the experiments {', '.join(found)}; {asked}, as in {path}:{next(iter(found))}")
    return found[which]


def _with_options(experiment: Experiment, options: Sequence[str]) -> Experiment:
    """Change an experiment as its own command line would."""
    import tyro

    if not options:
        return experiment
    said = io.StringIO()
    try:
        with redirect_stderr(said), redirect_stdout(said):
            return tyro.cli(
                option_type(experiment), default=experiment, args=list(options), prog="options", console_outputs=True
            )
    except SystemExit as error:
        words = " ".join(re.sub(r"[╭╮╰╯│─]", " ", said.getvalue()).split())
        raise ValueError(f"the experiment does not take {' '.join(options)}: {words[:400]}") from error


def _compute(config: Any) -> str:
    """Find the compute type: of the first `Precision` in a config."""
    if isinstance(config, Precision):
        return config.compute
    if dataclasses.is_dataclass(config):
        found = (_compute(getattr(config, field.name)) for field in dataclasses.fields(config))
        return next((dtype for dtype in found if dtype), "")
    return ""


def _changed(config: Any, size: Size) -> Any:
    """Change type, rematerialisation and dropout, at any depth of a config."""
    config = config if size.dtype is None else with_precision(config, compute=size.dtype)
    config = config if size.remat is None else _with(config, lambda name: name == "remat", size.remat)
    return config if size.dropout is None else _with(config, lambda name: name.endswith("dropout"), size.dropout)


def _with(config: Any, chosen: Callable[[str], bool], value: Any) -> Any:
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        return config
    parts = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.init}
    return replace(config, **{k: value if chosen(k) else _with(v, chosen, value) for k, v in parts.items()})


def _remat(config: Any) -> str:
    """Find what the backward pass computes again: the first `remat` in a config."""
    if not dataclasses.is_dataclass(config):
        return ""
    found = (_remat(getattr(config, field.name)) for field in dataclasses.fields(config))
    return getattr(config, "remat", "") or next((name for name in found if name), "")


def _from_config(name: str, config: Any, size: Size, **changes: Any) -> Workload:
    family = FAMILIES.get(type(config))
    if family is None:
        known = ", ".join(kind.__name__ for kind in FAMILIES)
        raise ValueError(f"{name} must be of a family that can be measured ({known}), got {type(config).__name__}")
    config = _changed(config, size)
    batch = changes.pop("batch", None) or family.batch(config, size.batch or 32, size.length or 32)
    if size.documents is not None:
        batch = _packed(name, batch, size.documents)
    return Workload(
        name=name,
        dtype=_compute(config),
        remat=_remat(config) or "none",
        **{
            "init": lambda key: module_of(config)(config, rngs=nnx.Rngs(key)),
            "batch": batch,
            "shape": family.shape(config, batch),
            "forward": family.forward,
            "objective": family.objective,
            "decode": family.decode,
            "ready": family.ready,
            "count": family.count,
            **changes,
        },
    )


def _packed(name: str, batch: Batch, documents: int) -> Batch:
    if "tokens" not in batch["inputs"] or "places" in batch:
        raise ValueError(f"documents are packed for decoder-only models alone, {name} is none")
    rows, length = batch["labels"].shape
    if documents > length:
        raise ValueError(f"a row of {length} tokens holds as many documents at most, got {documents}")
    of = np.arange(length) * documents // length
    fields = {"segments": of + 1, "positions": np.arange(length) - np.searchsorted(of, of)}
    packed = {name: np.broadcast_to(field.astype(np.int32), (rows, length)) for name, field in fields.items()}
    return {**batch, "inputs": {**batch["inputs"], **packed}}


def _from_experiment(name: str, experiment: Experiment, size: Size) -> Workload:
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
    config = _changed(getattr(experiment, "model", None), size)
    if config is not None:
        experiment = replace(experiment, model=config)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        task = experiment.task(RunFolder(Path(folder)))
        batch = jax.tree.map(jax.numpy.asarray, next(iter(task.batches)))
    objective = freeze(task.objective, experiment.optimizer.trainable)
    init = task.init if task.model is None else lambda key: task.model
    training |= {"init": init, "objective": objective, "batch": batch}
    if type(config) in FAMILIES:
        return _from_config(name, config, Size(), **training)
    leading = jax.tree.leaves(batch)[0].shape
    return Workload(
        name=name,
        dtype=_compute(config) or "float32",
        remat=_remat(config) or "none",
        shape={"rows": leading[0]},
        forward=lambda model, rows: task.objective(model, rows, key=None)[0],
        count=lambda model, rows: {},
        **training,
    )


def _from_plan(name: str, experiment: Recipe, size: Size, training: dict) -> Workload:
    """Take the longest batches that a recipe plans, and its vocabulary: no data is read."""
    planned = experiment.examples.planned(size.length)
    spec = Spec(uses=(), vocab=size.vocab or planned["vocab"], multiple=planned["multiple"])
    size = replace(size, batch=size.batch or planned["batch"], length=planned["length"], vocab=None)
    return _from_config(name, sized(experiment.model, spec), size, objective=experiment.objective, **training)
