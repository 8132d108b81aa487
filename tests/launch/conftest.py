import json
import os
import shutil
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


class StandIn:
    """The tools on PATH, and what they were called with."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.plan()

    def plan(self, **turns):
        (self.folder / "plan.json").write_text(json.dumps(turns))

    @property
    def calls(self) -> list[list[str]]:
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def verbs(self) -> list[str]:
        known = ("describe", "create", "scp", "ssh", "delete", "get", "logs", "launch", "cancel")
        return [next(word for word in call if word in known) for call in self.calls]

    @property
    def did(self) -> list[str]:
        """Verbs that do more than ask."""
        return [verb for verb in self.verbs if verb not in ("describe", "get")]

    @property
    def exists(self) -> bool:
        return (self.folder / "state").exists()

    def set(self, state: str):
        (self.folder / "state").write_text(state)

    def forget_calls(self):
        (self.folder / "calls").unlink(missing_ok=True)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("gcloud", "kubectl", "sky"):
        path = folder / name
        path.write_text(f"#!{sys.executable} -I\n" + (HERE / "stand_in.py").read_text())
        path.chmod(0o755)
    monkeypatch.setenv("STAND_IN", str(folder))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return StandIn(folder)


@pytest.fixture
def pauses(monkeypatch):
    """Seconds waited for, without waiting."""
    waited = []

    def wait(seconds):
        waited.append(seconds)
        assert len(waited) < 100, "it would wait for ever"

    monkeypatch.setattr("flax_transformer.launch.run.time.sleep", wait)
    return waited


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    """An experiment file outside of any checkout, in the current folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "exp.py").write_text("print('hello')\n")
    monkeypatch.chdir(folder)
    return "exp.py"


@pytest.fixture
def no_tools(tmp_path, monkeypatch):
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "git").symlink_to(shutil.which("git"))
    monkeypatch.setenv("PATH", str(folder))
