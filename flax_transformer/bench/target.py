"""From a name to what is measured: a preset, an experiment, a Hugging Face checkpoint, or any function of a file."""

import inspect
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from flax_transformer.bench.experiment import from_experiment
from flax_transformer.bench.timing import Program, make_program
from flax_transformer.bench.workload import Size, Workload, from_config, hidden
from flax_transformer.compress import Quantization
from flax_transformer.compress.kernel import is_table
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.file import CONFIG, find_folder, read_json
from flax_transformer.hub.load import read_model
from flax_transformer.hub.quantized.rules import stored_schemes
from flax_transformer.hub.registry import find_family
from flax_transformer.hub.stored_config import with_model_type
from flax_transformer.hub.weights import resolve
from flax_transformer.listing import listed
from flax_transformer.models.preset import abstract, find_preset
from flax_transformer.objective import OBJECTIVES
from flax_transformer.task.command import split_target
from flax_transformer.task.experiment import Experiment
from flax_transformer.train.own_code import load_file


def find_target(name: str, size: Size, options: Sequence[str] = ()) -> Workload | Program:
    """Find what a name stands for.

    Args:
      name: a preset (`transformer_tiny`), an experiment (`experiments/wmt14.py:base`), a function of a file that
        returns another and a tuple of its arguments (`mine.py:step`), a folder with a config.json, or a hub id
        (`openai-community/gpt2`): what has no preset's name and is no Python file.
      options: of an experiment, as on its own command line.

    Raises:
      ValueError: when there is no such thing; the nearest names are told.
    """
    path, which = split_target(name)
    if path.endswith(".py"):
        return _from_file(name, Path(path), which, size, options)
    if options:
        raise ValueError(f"only experiments have options, got {' '.join(options)} for {name}")
    if not name.isidentifier() or Path(name).is_dir():
        return from_pretrained(name, size)
    make = find_preset(name)
    if size.vocab is not None and "vocab" not in inspect.signature(make).parameters:
        raise ValueError(f"{name} has no vocabulary to set, got vocab={size.vocab}")
    return from_config(name, make() if size.vocab is None else make(size.vocab), size)


def find_workload(name: str, size: Size, options: Sequence[str] = ()) -> Workload:
    """Find a model to train; arguments as `find_target`'s.

    Raises:
      ValueError: as `find_target`, and for a function, or a model that nothing says how to train.
    """
    found = find_target(name, size, options)
    if isinstance(found, Program):
        raise ValueError(f"{name} must be a model with a training step, it is a function")
    return found


def from_pretrained(name: str, size: Size) -> Workload:
    """Make the workload of a folder or a run with a config.json, or of a hub id, from which that one file is fetched.

    It is the model that config.json describes, with random weights, of few bits where it says so. What is on top of a
    model is trained if there is an objective for what its architecture can do.

    Raises:
      FileNotFoundError: no such folder, and no hub id.
      ValueError: none on the hub, an architecture that is not supported, a size that it decides itself, few bits that
        are not read.
    """
    if size.vocab is not None:
        raise ValueError(f"config.json decides on the vocabulary of {name}, got vocab={size.vocab}")
    folder = find_folder(name, only=(CONFIG,))
    file = next(filter(Path.is_file, (folder / "export" / CONFIG, folder / CONFIG)), None)
    if file is None:
        raise ValueError(f"a checkpoint has a {CONFIG}, there is none in {folder}")
    fields = Fields.of(with_model_type(read_json(file)))
    if "model_type" not in fields:
        raise ValueError(f"{file} must be of a Hugging Face checkpoint, which has a model_type; it has none")
    config = read_model(fields, file.parent)
    rules = _stored_rules(file, fields, config) if size.weights is None else ()
    made = from_config(name, config, size, rules)
    known = find_family(fields)[1]
    uses = set() if known.inputs.several else {*known.uses}  # examples are of one image a text
    if made.objective == OBJECTIVES["object-detection"] and "object-detection" not in uses:  # it has no heads
        return replace(made, forward=hidden, objective=None)
    labels = {use for use, objective in OBJECTIVES.items() if objective == OBJECTIVES["classification"]}
    scored = made.objective == OBJECTIVES["classification"] and not labels & uses
    return replace(made, objective=None) if scored else made


def _stored_rules(file: Path, fields: Fields, config: Any) -> tuple[Quantization, ...]:
    """Return the few bits that a checkpoint's kernels have, as its config.json says; none where they are whole."""
    stored = fields.get("quantization_config")
    if stored is None:
        return ()
    family, architecture = find_family(fields)
    try:
        schemes = stored_schemes(stored, resolve(family.rows(architecture), abstract(config)))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    paths: dict[tuple, list[str]] = {}
    for path, scheme in schemes.items():
        paths.setdefault((scheme.kind, scheme.group, scheme.activations, is_table(path)), []).append(path)
    return tuple(
        Quantization(weights=kind, group=group, activations=activations, embeddings=table, pattern=_any_of(names))
        for (kind, group, activations, table), names in paths.items()
    )


def _any_of(paths: list[str]) -> str:
    return f"^({'|'.join(map(re.escape, paths))})$"


def _from_file(name: str, path: Path, which: str, size: Size, options: Sequence[str]) -> Workload | Program:
    module = _load(path)
    named = getattr(module, which, None)
    if inspect.isfunction(named) and which not in _experiments(module):
        if size != Size() or options:
            raise ValueError(f"{name} decides on its own arguments: sizes and options are for models")
        return program_of(name, named())
    return from_experiment(name, find_experiment(path, which, module), size, options)


def program_of(name: str, made: Any) -> Program:
    """Make a program of what a function of a file has returned.

    Raises:
      ValueError: for something else than a function and a tuple of its arguments.
    """
    if isinstance(made, Program):
        return made
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0]) and isinstance(made[1], tuple)):
        kinds = ", ".join(type(part).__name__ for part in made) if isinstance(made, tuple) else type(made).__name__
        raise ValueError(
            f"{name} must return a function and a tuple of its arguments, `return step, (model, batch)`, got {kinds}"
        )
    return make_program(made[0], *made[1])


def find_experiment(path: Path, which: str = "", module: ModuleType | None = None) -> Experiment:
    """Load the experiment an experiment file defines: a global, or an entry of a global dict, named `which`.

    Args:
      module: of the file, where it has been loaded.

    Raises:
      ValueError: when there is no such file or experiment, or several and none is named.
    """
    found = _experiments(module or _load(path))
    if not found:
        if which:
            raise ValueError(f"{path} must define a function or an Experiment as a global {which}, it has none")
        raise ValueError(f"{path} must define an Experiment as a global, it has none; a function is named, {path}:NAME")
    if len(found) == 1 and not which:
        return next(iter(found.values()))
    if which not in found:
        asked = f"it has no {which!r}" if which else "say which"
        raise ValueError(f"{path} has the experiments {listed(found)}; {asked}, as in {path}:{next(iter(found))}")
    return found[which]


def find_experiments(path: Path) -> dict[str, Experiment]:
    """Load all experiments that a file defines, by name.

    Raises:
      ValueError: when there is no such file.
    """
    return _experiments(_load(path))


def _experiments(module: ModuleType) -> dict[str, Experiment]:
    """Find the experiments that a file defines as globals or in global dicts, where a name may be a function's too."""
    groups = (vars(module), *(each for each in vars(module).values() if isinstance(each, dict)))
    return {str(key): each for group in groups for key, each in group.items() if isinstance(each, Experiment)}


def _load(path: Path) -> ModuleType:
    """Run a Python file, as a module of its own that finds what lies beside it."""
    if not path.is_file():
        raise ValueError(f"a target that ends in .py must be a Python file, there is none at {path}")
    beside = str(path.resolve().parent)
    if beside not in sys.path:
        sys.path.append(beside)
    return load_file(path, f"_bench_{path.stem}")
