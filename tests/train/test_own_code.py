"""Runs of experiments in a user's own files: remembered, and imported with permission alone."""

import contextlib
import io
import json
import runpy
import sys
from pathlib import Path

import pytest

from flax_transformer.cli.trust import reads_runs
from flax_transformer.task.run import open_translator
from flax_transformer.train.folder import FolderError, RunFolder, read_experiment
from flax_transformer.train.own_code import FILE, PERMIT, ImportRequest, permitting

MINE = '''
import sys
from dataclasses import replace
from helper import SEED
from flax_transformer.data.synthetic import Numbers
from flax_transformer.frozen import frozen
from flax_transformer.task.experiment import train
from tests.recipe import tiny_translation

@frozen
class Mine:
    """Where my pairs come from."""

    train: int = 100

    def read(self, split):
        return Numbers(train=self.train, validation=10, test=6).read(split)

if __name__ == "__main__":
    train(replace(tiny_translation(), data=Mine()), sys.argv[1])
'''


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder, said = tmp_path_factory.mktemp("own"), io.StringIO()
    (folder / "mine.py").write_text(MINE)
    (folder / "helper.py").write_text("SEED = 0\n")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.syspath_prepend(folder)
        patch.chdir(folder)
        patch.setattr("sys.argv", ["mine.py", "run"])
        runpy.run_path("mine.py", run_name="__main__")
    sys.modules.pop("helper")
    return folder, said.getvalue()


@pytest.mark.rotates
def test_a_run_remembers_the_file_it_came_from(made):
    folder, said = made
    known = json.loads((folder / "run" / FILE).read_text())["modules"]
    assert known.keys() == {"__main__"}
    assert known["__main__"]["file"] == str((folder / "mine.py").resolve())
    assert len(known["__main__"]["sha256"]) == 64
    assert "translate run --trust\n" in said


@pytest.mark.rotates
def test_commands_read_it_with_permission_alone(made, run, monkeypatch):
    folder, _ = made
    monkeypatch.chdir(folder)
    code, out, err = run("translate", "run", stdin=b"seven\n")
    assert (code, out) == (1, "")
    assert err.startswith("error: to read the run run, mine.py must be imported, which runs it")
    assert err.endswith(": add --trust to permit that, or use run/export, which needs none\n")
    code, out, err = run("translate", "run", "--trust", stdin=b"seven\n")
    assert (code, len(out.splitlines()), err) == (0, 1, "")
    code, out, err = run("report", "run")
    assert (code, out) == (0, "run/report.html\n")
    assert "mine.py must be imported" in err
    assert run("report", "run", "--trust")[2] == ""


def test_what_was_done_without_permission_is_told_also_when_files_are_damaged(capsys):
    def partial(target: str) -> None:
        assert not PERMIT.get()(ImportRequest(Path("RUN"), (Path("mine.py"),), (), ()))
        raise SystemExit(1)

    with pytest.raises(SystemExit):
        reads_runs(partial)("RUN")
    assert capsys.readouterr().err.count("mine.py must be imported, which runs it: add --trust") == 1


@pytest.mark.rotates
def test_a_person_at_a_terminal_is_asked(made, monkeypatch):
    asked = []
    permit = lambda request: asked.append(str(request)) or True  # noqa: E731
    with permitting(permit):
        translator, _ = open_translator(made[0] / "run")
    assert "mine.py must be imported" in asked[0]
    assert translator.tokenizer is not None
    with permitting(lambda request: False), pytest.raises(FolderError, match="add --trust"):
        open_translator(made[0] / "run")


def test_a_file_that_has_changed_or_gone_is_told(made, run, monkeypatch):
    folder, _ = made
    monkeypatch.chdir(folder)
    path = folder / "mine.py"
    before = path.read_text()
    try:
        path.write_text(f"{before}\n# more\n")
        assert (
            "mine.py (which has changed since the run was made) must be" in run("translate", "run", stdin=b"one\n")[2]
        )
        code, out, err = run("translate", "run", "--trust", stdin=b"one\n")
        assert (code, len(out.splitlines())) == (0, 1)
        assert err.count("which has changed since the run was made") == 1
        path.unlink()
        code, _, err = run("translate", "run", "--trust", stdin=b"one\n")
        assert (code, "run was made by mine.py, which is not there any more" in err) == (1, True)
    finally:
        path.write_text(before)


@pytest.mark.parametrize(
    ("content", "said"),
    [("raise KeyError(1)", "KeyError: 1"), ("import nothing_here", "No module named"), ("exit(3)", "SystemExit: 3")],
)
def test_a_file_that_cannot_be_imported_is_named(tmp_path, content, said):
    _write(tmp_path, content)
    with permitting(lambda request: True), pytest.raises(FolderError, match=f"own.py cannot be imported: .*{said}"):
        read_experiment(RunFolder(tmp_path / "run"))


def test_only_what_the_file_defines_is_named(tmp_path):
    _write(tmp_path, "from os import system as Mine")
    with permitting(lambda request: True), pytest.raises(FolderError, match=r"own\.py does not define"):
        read_experiment(RunFolder(tmp_path / "run"))


@pytest.mark.parametrize("record", ["{", "[]", '{"modules": 1}', '{"modules": {"__main__": {"file": 1}}, "path": []}'])
def test_a_damaged_record_is_named(tmp_path, record):
    _write(tmp_path, "")
    (tmp_path / "run" / FILE).write_text(record)
    with permitting(lambda request: True), pytest.raises(FolderError, match=r"code\.json"):
        read_experiment(RunFolder(tmp_path / "run"))


def _write(folder, content):
    (folder / "run").mkdir()
    (folder / "own.py").write_text(content)
    (folder / "run" / "config.json").write_text('{"type": "__main__:Mine"}')
    known = {"__main__": {"file": str(folder / "own.py"), "sha256": "0" * 64, "name": ""}}
    (folder / "run" / FILE).write_text(json.dumps({"modules": known, "path": []}))
