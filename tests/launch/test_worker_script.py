"""The scripts that run on workers, with stand-ins for what installs and mounts."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flax_transformer.launch.package import pack
from flax_transformer.launch.script import WATCH, WORKER

EXPERIMENT = """
import json, os, pathlib, signal, sys, time
home = pathlib.Path.home()
if "--wait" in sys.argv:
    def end(number, frame):
        print("saved", flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, end)
    print("training", flush=True)
    (home / "training.partial").write_text(str(os.getppid()))
    (home / "training.partial").rename(home / "training")
    while not (home / "go").exists():
        time.sleep(0.05)
with (home / "seen").open("a") as seen:
    seen.write(json.dumps(sys.argv[1:]) + "\\n")
print("done", flush=True)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def worker(tmp_path):
    """A machine: its home, its tools, and what was sent to it."""
    home, tools = tmp_path / "home", tmp_path / "tools"
    home.mkdir()
    tools.mkdir()
    stubs = {
        "mountpoint": 'test "$2" = /gcs/bucket',
        "python3": f"""[ "$2" = tarfile ] && exec {sys.executable} "$@"
echo "$@" >> {home}/installed
case "$*" in *venv\\ *) mkdir -p venv/bin && ln -sf {sys.executable} venv/bin/python;; esac""",
        "hostname": "echo t1v-n-0a1b2c3d-w-3",
    }
    for name, body in stubs.items():
        (tools / name).write_text(f"#!/bin/bash\n{body}\n")
        (tools / name).chmod(0o755)
    (tmp_path / "exp.py").write_text(EXPERIMENT)
    package = pack(tmp_path / "exp.py", library=tmp_path)
    (home / "code.tar.xz").write_bytes(package.content)
    (home / "worker.sh").write_text(WORKER)
    (home / "watch.sh").write_text(WATCH)
    environment = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "HOME": str(home)}

    def start(script, *arguments):
        command = ["bash", home / script, package.digest, package.requirement, "bucket", package.experiment, *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, env=environment, cwd=tmp_path, **pipes)

    start.home, start.tools = home, tools
    return start


def wait_for(path: Path):
    limit = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < limit, f"{path} never came"
        time.sleep(0.05)


def test_scripts_are_shell():
    for script in (WORKER, WATCH):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        if shutil.which("shellcheck"):
            subprocess.run(["shellcheck", "-"], input=script, text=True, check=True)


@pytest.mark.parametrize("script", ["worker.sh", "watch.sh"])
def test_the_exit_code_and_the_arguments_are_the_experiments(worker, script):
    job = worker(script, "7", "it's", "$HOME", "a  b")
    out = job.communicate(timeout=60)[0]
    assert job.returncode == 7, out
    assert (worker.home / "seen").read_text() == '["7", "it\'s", "$HOME", "a  b"]\n'
    assert out == ("[3] done\n" if script == "watch.sh" else "done\n")


def test_the_code_is_installed_once(worker):
    for _ in range(2):
        assert worker("worker.sh", "0").communicate(timeout=60)[0] == "done\n"
    installed = (worker.home / "installed").read_text().splitlines()
    assert [line for line in installed if "pip install" in line and "flax" in line] == [
        line for line in installed if "flax-transformer[tpu]==" in line
    ]
    assert sum("venv --quiet" in line for line in installed) == 1


def test_code_in_several_pieces_is_put_together(worker):
    whole = (worker.home / "code.tar.xz").read_bytes()
    (worker.home / "code.tar.xz").unlink()
    for ending, piece in zip("ab", (whole[:50], whole[50:]), strict=True):
        (worker.home / f"code.tar.xz.{ending}").write_bytes(piece)
    assert worker("worker.sh", "0").communicate(timeout=60)[0] == "done\n"


def test_a_worker_that_must_make_way_lets_the_experiment_save_and_says_so(worker):
    job = worker("worker.sh", "0", "--wait")
    wait_for(worker.home / "training")
    job.send_signal(signal.SIGTERM)
    assert job.communicate(timeout=60)[0] == "training\nsaved\n"
    assert job.returncode == 143


@pytest.mark.rotates
def test_a_run_outlives_the_connection_and_is_joined_again(worker):
    first = worker("watch.sh", "5", "--wait")
    wait_for(worker.home / "training")
    first.kill()
    first.wait()
    again = worker("watch.sh", "5", "--wait")
    assert again.stdout.readline() == "[3] training\n"
    (worker.home / "go").touch()
    assert again.communicate(timeout=60)[0] == "[3] done\n"
    assert again.returncode == 5
    assert (worker.home / "seen").read_text().count("\n") == 1


@pytest.mark.rotates
def test_after_it_has_ended_it_is_started_anew(worker):
    assert worker("watch.sh", "1").wait(timeout=60) == 1
    job = worker("watch.sh", "0")
    assert job.communicate(timeout=60)[0] == "[3] done\n"
    assert job.returncode == 0


@pytest.mark.rotates
def test_a_mount_that_stays_does_not_hold_the_next_run_up(worker, request):
    stubs = {"mountpoint": "exit 1", "sudo": "exit 0", "gcsfuse": "sleep 60 > /dev/null 2>&1 &\necho $! > $HOME/mount"}
    for name, body in stubs.items():
        (worker.tools / name).write_text(f"#!/bin/bash\n{body}\n")
        (worker.tools / name).chmod(0o755)
    for code in (1, 0):
        job = worker("watch.sh", str(code))
        assert job.communicate(timeout=60)[0] == "[3] done\n"
        assert job.returncode == code
        mount = int((worker.home / "mount").read_text())
        request.addfinalizer(lambda mount=mount: os.kill(mount, signal.SIGKILL))  # is there until then, or it fails
    assert (worker.home / "seen").read_text() == '["1"]\n["0"]\n'


@pytest.mark.rotates
def test_the_lock_is_held_as_long_as_the_experiment_runs(worker):
    job = worker("watch.sh", "7", "--wait")
    wait_for(worker.home / "training")
    started_by = (worker.home / "training").read_text()
    holder = int(Path(f"/proc/{started_by}/stat").read_text().rpartition(")")[2].split()[1])  # whose child that is
    os.kill(holder, signal.SIGTERM)  # as all get it when a machine is taken away
    assert subprocess.run(["flock", "-n", worker.home / "worker.lock", "true"]).returncode == 1
    (worker.home / "go").touch()
    assert job.communicate(timeout=60)[0] == "[3] training\n[3] done\n"
    assert job.returncode == 7
