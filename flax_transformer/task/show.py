"""A run folder in words: configuration, parameters by module, newest metrics."""

import json
import math
from pathlib import Path

import jax.numpy as jnp

from flax_transformer.train.checkpoint import Checkpoints
from flax_transformer.train.folder import RunFolder, read_config
from flax_transformer.train.progress import number


def size(count: int) -> str:
    """Spell bytes.

    >>> size(512), size(9_800_000), size(999_999)
    ('512 B', '9.8 MB', '1 MB')
    """
    power = next(p for p in range(5) if count < 999.5 * 1000**p or p == 4)
    return f"{count / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


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
        else:
            lines.append(f"{indent}{name}: {value}")
    return lines


def parameter_lines(checkpoints: Checkpoints) -> list[str]:
    """List the model's parameters with shape, count, bytes and share, and a subtotal a module."""
    shapes = {
        name.removeprefix("model."): leaf for name, leaf in checkpoints.shapes().items() if name.startswith("model.")
    }
    total = sum(math.prod(leaf.shape) for leaf in shapes.values())
    modules: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, leaf in sorted(shapes.items()):
        module, _, rest = name.partition(".")
        modules.setdefault(module, {})[rest] = leaf
    rows = []
    for module, leaves in modules.items():
        count = sum(math.prod(leaf.shape) for leaf in leaves.values())
        bytes_ = sum(math.prod(leaf.shape) * jnp.dtype(leaf.dtype).itemsize for leaf in leaves.values())
        rows.append((module, "", f"{count:,}", size(bytes_), f"{100 * count / total:.1f} %"))
        for rest, leaf in leaves.items():
            n = math.prod(leaf.shape)
            bytes_ = n * jnp.dtype(leaf.dtype).itemsize
            rows.append(
                (f"  {rest}", "×".join(map(str, leaf.shape)), f"{n:,}", size(bytes_), f"{100 * n / total:.1f} %")
            )
    everything = sum(math.prod(leaf.shape) * jnp.dtype(leaf.dtype).itemsize for leaf in shapes.values())
    rows.append(("total", "", f"{total:,}", size(everything), ""))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    align = (str.ljust, str.ljust, str.rjust, str.rjust, str.rjust)
    return ["  ".join(f(cell, w) for f, cell, w in zip(align, row, widths, strict=True)).rstrip() for row in rows]


def metric_lines(path: Path) -> list[str]:
    """Give the newest metrics of each split."""
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
            f"{name} {'not finite' if value is None else number(value)}"
            for name, value in record.items()
            if name not in ("split", "step")
        )
        lines.append(f"{split} (step {record['step']}): {values}")
    return lines or ["none yet"]


def describe(workdir: str) -> None:
    """Print what a run folder holds.

    Raises:
      FolderError: when it is no run folder.
      CheckpointError: when its newest checkpoint cannot be read.
    """
    folder = RunFolder(Path(workdir))
    config = read_config(folder)
    print(f"{folder.root}: {config.get('type', '?').split(':')[-1]}\n")
    print("\n".join(config_lines(config)))
    print("\nparameters")
    if folder.checkpoints.is_dir():
        with Checkpoints(folder.checkpoints, keep=None) as checkpoints:
            steps = checkpoints.steps()
            print("\n".join(parameter_lines(checkpoints)) if steps else "no checkpoint yet")
            print(f"\ncheckpoints: {', '.join(map(str, steps)) or 'none'}")
    else:
        print("no checkpoint yet")
    print("\nmetrics\n" + "\n".join(metric_lines(folder.metrics)))
