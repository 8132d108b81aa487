"""Commands begin and end without a fuss."""

import fnmatch
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flax_transformer.task import command

ROOT = Path(__file__).parent.parent.parent
BEFORE = (
    "from flax_transformer.task.command import quietly\nwith quietly():\n  import jax; print(jax.config.jax_platforms)"
)
AFTER = f"import jax\n{BEFORE}"
HAS_LIBRARY = importlib.util.find_spec("libtpu") is not None
HAS_DEVICE = any(map(command.glob.glob, command.DEVICES))


def python(*arguments, **more):
    """Start a process that has heard nothing of platforms; give its standard output, error and exit code."""
    hidden = ("JAX_PLATFORMS", "TPU_SKIP_MDS_QUERY", "PYTHONUNBUFFERED")
    env = {name: value for name, value in os.environ.items() if name not in hidden} | {"PYTHONPATH": str(ROOT)} | more
    return subprocess.Popen([sys.executable, *arguments], env=env, stdout=-1, stderr=-1, text=True)


def said(*arguments, **more):
    child = python(*arguments, **more)
    out, err = child.communicate(timeout=120)
    assert child.returncode == 0, err
    return out.strip(), err


@pytest.fixture
def library(tmp_path):
    """A path on which the library of TPUs is installed, or what JAX takes for it."""
    (tmp_path / "libtpu.py").write_text("def get_library_path(): return '/nowhere/libtpu.so'\n")
    return os.pathsep.join([str(tmp_path), str(ROOT)])


@pytest.mark.rotates
@pytest.mark.skipif(HAS_DEVICE, reason="an accelerator is here")
@pytest.mark.parametrize("code", [BEFORE, AFTER], ids=["before JAX is imported", "after"])
def test_the_cpu_is_taken_where_only_the_library_of_tpus_is(code, library):
    assert said("-c", code, PYTHONPATH=library)[0] == "cpu"


@pytest.mark.skipif(HAS_DEVICE or not HAS_LIBRARY, reason="needs libtpu without a TPU")
def test_nothing_is_said_of_a_tpu_that_is_not_there():
    begin = "from flax_transformer.task.command import quietly\nimport jax\nwith quietly():\n  "
    assert said("-c", f"{begin}print(jax.default_backend())") == ("cpu", "")


@pytest.mark.rotates
@pytest.mark.skipif(HAS_LIBRARY, reason="libtpu is installed")
def test_without_the_library_jax_chooses():
    assert said("-c", BEFORE)[0] == "None"


@pytest.mark.rotates
def test_whoever_chooses_a_platform_is_obeyed(library):
    assert said("-c", BEFORE, PYTHONPATH=library, JAX_PLATFORMS="cuda,cpu")[0] == "cuda,cpu"


@pytest.mark.parametrize("device", ["/dev/accel0", "/dev/vfio/0", "/dev/nvidia0", "/dev/nvidiactl", None])
def test_where_an_accelerator_is_jax_chooses(device, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.delitem(sys.modules, "jax")
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: name == "libtpu" or None)
    monkeypatch.setattr(command.glob, "glob", lambda pattern: fnmatch.filter([device] if device else [], pattern))
    command.settle_platform()
    assert os.environ.pop("JAX_PLATFORMS", None) == (None if device else "cpu")


@pytest.mark.rotates
@pytest.mark.parametrize(
    "arguments",
    [("experiments/translate_numbers.py", "--help"), ("-m", "flax_transformer.cli", "--help")],
    ids=["an experiment", "the command line"],
)
def test_a_reader_that_has_had_enough_is_no_error(arguments):
    child = python(*arguments)
    child.stdout.close()  # as `head` does
    assert child.stderr.read() == ""
    assert child.wait() == 141
