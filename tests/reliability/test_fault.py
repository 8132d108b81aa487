"""What a single run survives, in processes of its own: preemption at any moment, folders and disks that fail."""

import os
import shutil
import signal
import subprocess
from contextlib import contextmanager

import pytest
from harness import Job, arrays, copied, good, records, saved

pytestmark = pytest.mark.proves("many processes", "preemption, failures, full disks, damage")


@pytest.mark.parametrize(
    ("env", "steps"),
    [
        pytest.param({"TERMINATE": "compiling"}, (1, 2), id="compiling", marks=pytest.mark.slow),
        pytest.param({"FAULT": "terminate:0:4"}, (4, 5), id="training", marks=pytest.mark.slow),
        pytest.param({"TERMINATE": "evaluating"}, (11,), id="evaluating", marks=pytest.mark.slow),
    ],
)
def test_sigterm_saves_ends_with_code_0_and_resumes_exactly(straight, cache, tmp_path, env, steps):
    (ended,) = good(Job(tmp_path, cache=cache, **env))
    step = saved(tmp_path)[-1]
    assert f"preempted at step {step}; the same command goes on from there" in ended.out
    assert step in steps
    if step == 11:
        good(Job(tmp_path, cache=cache))
        assert arrays(tmp_path, 20) == arrays(straight, 20)
        assert records(tmp_path) == records(straight)


@pytest.mark.rotates
def test_sigterm_outside_of_training_ends_at_once(cache, tmp_path):
    (ended,) = good(Job(tmp_path, cache=cache, SLOW_START=100).wait_for("preparing").send(signal.SIGTERM))
    assert "preempted outside of training; the same command goes on from the last checkpoint" in ended.out
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.usefixtures("straight")  # its first step is not compiled then, which takes time
@pytest.mark.slow
def test_a_hang_is_shown_and_ended(cache, tmp_path):
    (ended,) = Job(tmp_path, "--train.stall", 2, cache=cache, FAULT="hang:0:7").end()
    assert ended.code == 1
    assert "process 0 of 1: no training step was done in" in ended.out
    assert "in _break" in ended.out
    assert "in _break" in (tmp_path / "stacks-0.txt").read_text()


@contextmanager
def small_disk(folder, size):
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.slow
def test_a_full_disk_is_told_and_the_run_goes_on_when_there_is_room(straight, cache, tmp_path):
    size = sum(path.stat().st_size for path in straight.rglob("*") if path.is_file())
    with small_disk(tmp_path / "disk", "400k") as disk:
        (ended,) = Job(disk / "run", "--train.keep", 20, "--train.checkpoint-every", 1, cache=cache).end()
        assert ended.code == 1, ended.out
        assert "error: " in ended.out.splitlines()[-1]
        assert "No space left on device" in ended.out or "no space left on device" in ended.out
        assert "Traceback" not in ended.out
        assert saved(disk / "run")
        arrays(disk / "run", saved(disk / "run")[-1])
        subprocess.run(["mount", "-o", f"remount,size={10 * size}", disk], check=True)
        good(Job(disk / "run", cache=cache))
        assert arrays(disk / "run", 20) == arrays(straight, 20)


@pytest.mark.rotates
def test_a_folder_that_vanishes_is_told_at_the_next_report(cache, tmp_path):
    (ended,) = Job(tmp_path / "run", cache=cache, FAULT="vanish:0:7").end()
    assert ended.code == 1
    # Whichever is seen first: that the folder is gone, or that the save of step 5 did not come to its end.
    folder = tmp_path / "run" / "checkpoints"
    assert ended.out.splitlines()[-1] in (
        f"error: the folder {folder} is gone; nothing more can be saved there",
        f"error: could not save the checkpoint of step 5 to {folder} (the folder is gone); there is no earlier one",
    ), ended.out
    assert "step  8/20" not in ended.out
    assert "Traceback" not in ended.out
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.rotates
def test_a_folder_that_cannot_be_written_is_told_before_training(cache, tmp_path):
    powers = "-dac_override,-dac_read_search"  # by which root writes anywhere
    lowered = ("setpriv", f"--bounding-set={powers}", f"--inh-caps={powers}") if os.getuid() == 0 else ()
    if lowered and (not shutil.which("setpriv") or subprocess.run([*lowered, "true"], capture_output=True).returncode):
        pytest.skip("root may write anywhere")
    (tmp_path / "run").mkdir(mode=0o555)
    (ended,) = Job(tmp_path / "run", cache=cache, under=lowered).end()
    assert ended.code == 2
    assert f"error: cannot write to {tmp_path / 'run'}: [Errno 13] Permission denied" in ended.out


@pytest.mark.slow
def test_a_file_system_that_is_read_only_is_told_before_training(straight, cache, tmp_path):
    with small_disk(tmp_path / "disk", "4m") as disk:
        copied(straight, disk / "run")
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        (ended,) = Job(disk / "run", "--train.steps", 30, cache=cache).end()
        assert ended.code == 2
        assert ended.out.splitlines()[-1].startswith(f"error: cannot write to {disk / 'run'}: ")
        assert "Read-only file system" in ended.out
