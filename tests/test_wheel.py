"""What is released, built as it is released and installed where nothing of this repository can be seen."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import flax_transformer as ft

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

pytestmark = pytest.mark.slow


def said(*command, cwd=ROOT, env=ENVIRONMENT):
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, made of the source archive, as `python -m build` does."""
    dist = tmp_path_factory.mktemp("dist")
    said(sys.executable, "-m", "build", "--outdir", dist, env=os.environ)
    assert len(list(dist.glob(f"flax_transformer-{ft.__version__}.tar.gz"))) == 1
    (made,) = dist.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The programs of an environment that has the wheel, what it asks for, and nothing else; and a folder elsewhere."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    said(programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    return programs, folder


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel):
    kept = said("git", "ls-files", "flax_transformer").splitlines()
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == set(kept)
    assert {Path(name).suffix for name in names} >= {".py", ".typed", ".css", ".js", ".html", ".sh"}


def test_the_command_runs_from_anywhere(installed):
    programs, folder = installed
    assert said(programs / "flax-transformer", "--version", cwd=folder) == f"flax-transformer {ft.__version__}\n"
    total = said(programs / "flax-transformer", "show", "transformer_tiny", cwd=folder).splitlines()[-1]
    assert total.split()[:3] == ["total", "float32", "2,568,192"]


def test_every_room_imports_with_what_the_wheel_asks_for(installed):
    programs, folder = installed
    code = "import flax_transformer as ft; print(ft.__file__, *(getattr(ft, room).__name__ for room in ft.__all__))"
    file, *rooms = said(programs / "python", "-c", code, cwd=folder).split()
    assert Path(file).is_relative_to(folder)
    assert rooms == [f"flax_transformer.{room}" for room in ft.__all__]


def test_an_experiment_trains_and_ends_with_its_page(installed):
    programs, folder = installed
    shutil.copy(ROOT / "experiments" / "translate_numbers.py", folder)
    few = ["--data.train", 50, "--data.validation", 5, "--data.test", 2, "--train.steps", 2]
    options = [*few, "--optimizer.schedule.warmup", 1, "--workdir", "run"]
    assert "exact match" in said(programs / "python", "translate_numbers.py", *options, cwd=folder)
    page = (folder / "run" / "report.html").read_text()
    assert "<style>" in page
    assert "<script>" in page
