"""What a launch leaves here: the files it sends, and a note of what it has made elsewhere."""

import json
from dataclasses import dataclass
from pathlib import Path

from flax_transformer.atomic import write_file
from flax_transformer.frozen import frozen
from flax_transformer.launch.package import Package
from flax_transformer.launch.plan import Command, LaunchPlan
from flax_transformer.launch.request import check_name
from flax_transformer.launch.target import TARGETS

ROOT = "runs/launch"


@frozen
class Made:
    """What launch has made, or was about to make, so that it may also delete it."""

    on: str
    name: str
    zone: str | None = None
    project: str | None = None

    def __post_init__(self):
        check_name(self.name)
        if self.on not in TARGETS:
            raise ValueError(f"on must be one of {', '.join(TARGETS)}, got {self.on!r}")
        for name in ("zone", "project"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or value.startswith("-")):
                raise ValueError(f"{name} must be a name, got {value!r}")

    @property
    def delete(self) -> tuple[Command, ...]:
        """The commands that delete it."""
        return TARGETS[self.on].delete(self.name, self.zone, self.project)


@dataclass(frozen=True)
class LaunchFolder:
    """The local folder of the launches of one name."""

    root: Path

    @property
    def note(self) -> Path:
        """The note of what was made; there is none where nothing is left to delete."""
        return self.root / "launch.json"

    def read(self) -> Made | None:
        """Return what was made and not deleted yet.

        Raises:
          ValueError: when the note is damaged; names the file.
        """
        if not self.note.is_file():
            return None
        try:
            return Made(**json.loads(self.note.read_bytes()))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.note} must say what a launch has made: {error}") from error

    def write(self, made: Made) -> None:
        """Note what is about to be made."""
        self.note.parent.mkdir(parents=True, exist_ok=True)
        write_file(self.note, json.dumps(vars(made), indent=2) + "\n")

    def forget(self) -> None:
        """Note that nothing is left."""
        self.note.unlink(missing_ok=True)

    def prepare(self, package: Package, plan: LaunchPlan) -> str:
        """Write the files that the plan's commands read; tell which."""
        self.root.mkdir(parents=True, exist_ok=True)
        write_file(self.root / "code.tar.xz", package.content)
        for path, content in (*plan.scripts, *plan.files):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write_file(path, content)
        others = ", ".join(Path(path).name for path, _ in (*plan.scripts, *plan.files))
        return f"{self.root.as_posix()} has {others}, and code.tar.xz: {package}"
