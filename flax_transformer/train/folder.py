"""A run is one folder: its config, checkpoints, metrics, samples and whatever the task adds."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from flax_transformer.atomic import write_file
from flax_transformer.listing import short_path
from flax_transformer.train.config import differences, from_json, outdated, parse_object, to_json
from flax_transformer.train.own_code import Untrusted, own_modules, remember_code

PACKAGES = ("flax_transformer",)
"""Where the types and functions of a run may come from without a question."""

FREE = (
    "train.steps", "train.log_every", "train.eval_every", "train.checkpoint_every", "train.keep",
    "train.skip_not_finite", "train.stall", "mesh.",
)  # fmt: skip
"""Settings that may change when a run goes on."""


class FolderError(RuntimeError):
    """A run folder cannot be used; the message says why."""


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run."""

    root: Path

    @property
    def config(self) -> Path:
        """The experiment as JSON."""
        return self.root / "config.json"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer, in the format of the `tokenizers` library."""
        return self.root / "tokenizer.json"

    @property
    def checkpoints(self) -> Path:
        """Orbax checkpoints, one folder a step."""
        return self.root / "checkpoints"

    @property
    def metrics(self) -> Path:
        """One JSON object a line: step, split, values."""
        return self.root / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's event files."""
        return self.root / "tensorboard"

    @property
    def samples(self) -> Path:
        """One JSON object a line: what the model made of an input, beside the reference."""
        return self.root / "samples.jsonl"

    @property
    def report(self) -> Path:
        """The page that shows the run."""
        return self.root / "report.html"

    def begun(self) -> bool:
        """Return whether there is a checkpoint to go on from."""
        return self.checkpoints.is_dir() and any(path.name.isdigit() for path in self.checkpoints.iterdir())


def open_folder(root: str | os.PathLike, experiment: Any) -> RunFolder:
    """Begin a run in `root`, or go on with the one that is there; process 0 before the others, who write nothing.

    Raises:
      FolderError: when the folder cannot be written, or holds a run of another configuration; then it says where
        the two differ and changes nothing. A run that never reached a checkpoint, say for a mistyped path, is none.
    """
    if "://" in str(root):
        raise FolderError(f"a run folder is a path, got {root}; a bucket must be mounted, as `launch` does by itself")
    folder = RunFolder(Path(root))
    config = to_json(experiment)
    if jax.process_index() > 0 and not folder.config.exists():
        raise FolderError(f"process {jax.process_index()} does not see {folder.config}; all processes need one folder")
    try:
        folder.root.mkdir(parents=True, exist_ok=True)
        own = folder.root.resolve()
        if outside := [path for path in folder.root.iterdir() if not path.resolve().is_relative_to(own)]:
            raise FolderError(f"a run writes only into its folder, {outside[0]} leads to {outside[0].resolve()}")
        if folder.config.exists():
            old = read_config(folder)
            if folder.begun() and old.get("type") != config.get("type"):
                was, now = (str(each.get("type")).split(":")[-1] for each in (old, config))
                raise FolderError(f"{folder.root} holds a run of a {was}, this is a {now}; use another --workdir")
            changed = [line for line in differences(old, config) if not line.startswith(FREE)]
            if changed and not folder.begun():
                folder.tokenizer.unlink(missing_ok=True)  # it was learnt from other settings
            elif changed:
                _check_version(folder, old)
                raise FolderError(
                    f"{folder.root} holds a run of another configuration:\n  " + "\n  ".join(changed)
                    + "\nUse another --workdir, or the settings the run began with."
                )  # fmt: skip
        if jax.process_index() == 0:
            write_file(folder.config, json.dumps(config, indent=2) + "\n")
            remember_code(folder.root, config, PACKAGES)
    except OSError as error:
        raise FolderError(f"cannot write to {folder.root}: {error}") from error
    return folder


@contextlib.contextmanager
def gone_if_refused(root: str | os.PathLike) -> Iterator[None]:
    """Begin a run in `root`; where that is refused, no folder stays that was not there before."""
    path = Path(root)
    new = [each for each in (path, *path.parents) if not os.path.exists(each)]
    try:
        yield
    except Exception:
        if new and jax.process_index() == 0:
            shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(OSError):  # another run may have begun beside it
                for each in new[1:]:
                    each.rmdir()
        raise


def read_config(folder: RunFolder) -> dict:
    """Read a run's config as JSON data.

    Raises:
      FolderError: when there is none or it is damaged.
    """
    if not folder.config.is_file():
        raise FolderError(f"{folder.root} is not a run folder: it has no config.json")
    try:
        data = parse_object(folder.config.read_bytes(), folder.config)
    except ValueError as error:
        raise FolderError(str(error)) from error
    if "model_type" in data and "type" not in data:
        kind = f"{data['model_type']!r:.60}"
        raise FolderError(f"{folder.root} is not a run folder but a checkpoint: its config.json has model_type={kind}")
    return data


def _check_version(folder: RunFolder, config: dict) -> None:
    if reason := outdated(config):
        raise FolderError(
            f"{folder.root} holds a run of another version of flax_transformer: here {reason}; go on with that "
            "version, or use another --workdir"
        )


def read_experiment(folder: RunFolder, packages: tuple[str, ...] = PACKAGES) -> Any:
    """Rebuild the experiment a run was made with.

    Args:
      packages: where its types and functions may come from, as for `from_json`.

    Raises:
      FolderError: when its config is missing, damaged, or names what is not there, or what may not be imported.
    """
    data = read_config(folder)
    if "flax_transformer" in packages:
        _check_version(folder, data)
    return rebuild(folder, data, folder.config, packages)


def rebuild(folder: RunFolder, data: Any, path: Path, packages: tuple[str, ...] = PACKAGES) -> Any:
    """Rebuild what the JSON in one of a run's files says, with the run's own code where it may be imported.

    Raises:
      FolderError: it names what is not there, or what may not be imported (`own_code.permitting`).
    """
    try:
        return from_json(data, packages, own_modules(folder.root, data, packages))
    except Untrusted as error:
        export = folder.root / "export"
        need = f", or use {short_path(export)}, which needs none" if any(export.glob("*.safetensors")) else ""
        raise FolderError(f"{error}: add --trust to permit that{need}") from error
    except (ValueError, TypeError) as error:
        raise FolderError(f"{path}: {error}") from error
