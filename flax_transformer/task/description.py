"""A run folder or a preset in words: configuration, parameters by module, newest metrics."""

import inspect
import itertools
import json
import operator
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flax_transformer.models.preset import abstract, find_preset, presets
from flax_transformer.nn.summary import Summary, summary
from flax_transformer.train.checkpoint import Checkpoints
from flax_transformer.train.config import to_json
from flax_transformer.train.folder import RunFolder, read_config
from flax_transformer.train.progress import spelled
from flax_transformer.train.state import parameter_count


def config_lines(config: dict, depth: int = 0) -> list[str]:
    """Lay out a JSON config, a line a field."""
    lines = []
    for name, value in config.items():
        if name == "type":
            continue
        indent = "  " * depth
        if isinstance(value, dict) and "function" in value:
            lines.append(f"{indent}{name}: {value['function'].split(':')[-1]}")
        elif isinstance(value, dict):
            kind = value.get("type", "").split(":")[-1]
            lines += [f"{indent}{name}: {kind}".rstrip(), *config_lines(value, depth + 1)]
        elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            for number, each in enumerate(value):
                lines += config_lines({f"{name}.{number}": each}, depth)
        else:
            lines.append(f"{indent}{name}: {value}")
    return lines


def metric_lines(path: Path) -> list[str]:
    """Return the newest metrics of each split."""
    newest: dict[str, dict] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                record = json.loads(line)
                newest[record["split"]] = record
            except (ValueError, KeyError):  # cut short by a kill
                continue
    lines = []
    for split, record in newest.items():
        values = "  ".join(
            f"{name} {'not finite' if value is None else spelled(name, value)}"
            for name, value in record.items()
            if name not in ("split", "step")
        )
        lines.append(f"{split} (step {record['step']}): {values}")
    return lines or ["none yet"]


def describe(target: str) -> None:
    """Print what a run folder holds, or what a preset is.

    Raises:
      FolderError: when it is a folder without a run.
      ValueError: when it is neither a folder nor a preset; the message has the nearest names.
      CheckpointError: when the run's newest checkpoint cannot be read.
    """
    path = Path(target)
    if (path / "config.json").exists() or (path.exists() and target not in presets()):
        _describe_run(RunFolder(path))
    else:
        _describe_preset(target)


def list_presets() -> None:
    """Print every preset under its family, with its parameters; nothing is allocated."""
    family = operator.attrgetter("__module__")
    for file, members in itertools.groupby(sorted(presets().values(), key=family), family):
        print(f"{file.rpartition('.')[2]}: {_about(sys.modules[file])}")
        for size, preset in sorted(((_size(each), each) for each in members), key=operator.itemgetter(0)):
            print(f"  {preset.__name__:<24}{size:>15,}  {_about(preset)}")


def _about(thing: Any) -> str:
    """Return what a docstring's first paragraph is about, in one line, without the address of a paper."""
    text = " ".join(inspect.getdoc(thing).partition("\n\n")[0].split()).removeprefix("Return ")
    return re.sub(r",? https?://[^\s)]+", "", text)


def _size(preset: Callable[[], Any]) -> int:
    return parameter_count(abstract(preset()))


def _describe_preset(name: str) -> None:
    """Print a preset's configuration and parameters; nothing is allocated."""
    try:
        preset = find_preset(name)
    except ValueError as error:
        raise ValueError(f"there is no run folder {name}, and {error}") from error
    config = preset()
    model = abstract(config)
    print(f"{name}: {type(model).__name__}\n{_about(preset)}\n")
    print("\n".join(config_lines(to_json(config))))
    print(f"\nparameters\n{summary(model)}")


def _describe_run(folder: RunFolder) -> None:
    config = read_config(folder)
    print(f"{folder.root}: {config.get('type', '?').split(':')[-1]}\n")
    print("\n".join(config_lines(config)))
    print("\nparameters")
    if folder.checkpoints.is_dir():
        with Checkpoints(folder.checkpoints, keep=None) as checkpoints:
            steps = checkpoints.steps()
            print(_parameters(checkpoints) if steps else "no checkpoint yet")
            print(f"\ncheckpoints: {', '.join(map(str, steps)) or 'none'}")
    else:
        print("no checkpoint yet")
    print("\nmetrics\n" + "\n".join(metric_lines(folder.metrics)))


def _parameters(checkpoints: Checkpoints) -> Summary:
    """Read the model's shapes off the newest checkpoint, without the code that made it."""
    shapes = checkpoints.shapes().items()
    return summary({name.removeprefix("model."): leaf for name, leaf in shapes if name.startswith("model.")})
