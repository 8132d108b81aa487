"""Processes here: lines, failures, Ctrl-C; and four that train together."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flax_transformer.parallel.multihost import VARIABLES
from tests.shares import only

ROOT = Path(__file__).parent.parent.parent
TINY = ROOT / "tests/reliability/tiny.py"
SCRIPT = f"""
import os, signal, sys, time
names = {VARIABLES!r}
index = int(os.environ.get(names["index"], 0))
for name in ("coordinator", "processes", "index"):
    print(name, os.environ.get(names[name]), flush=True)
print(" ".join(sys.argv[1:]), flush=True)
if "raise" in sys.argv and index == 1:
    time.sleep(0.5)
    raise RuntimeError("process one is broken")
if "wait" in sys.argv or ("raise" in sys.argv and index != 1):
    def end(number, frame):
        print("saved", flush=True)
        sys.exit(130 if number == signal.SIGINT else 0)
    if "wait" in sys.argv:
        signal.signal(signal.SIGINT, end)
        signal.signal(signal.SIGTERM, end)
    print("ready", flush=True)
    time.sleep(600)
"""


def start(file, *arguments, **env):
    command = [sys.executable, "-m", "flax_transformer.cli", "launch", file, "--on", "local", *arguments]
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "COLUMNS": "200", **env}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(list(map(str, command)), env=settings, **pipes)


def finish(job, timeout=120):
    """Wait for the end; what does not end is told to, with all that it has started."""
    try:
        return job.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        job.terminate()
        raise


@pytest.fixture
def script(tmp_path):
    (tmp_path / "exp.py").write_text(SCRIPT)
    return tmp_path / "exp.py"


@pytest.mark.rotates
def test_each_process_knows_the_others_and_its_lines_are_marked(script):
    job = start(script, "--processes", 3, "--workdir", "a b", "--", "--train.steps", "5")
    out, err = finish(job)
    assert (job.returncode, err) == (0, "")
    for index in range(3):
        lines = [line for line in out.splitlines() if line.startswith(f"[{index}] ")]
        assert lines[1:] == [
            f"[{index}] {text}" for text in ("processes 3", f"index {index}", "--train.steps 5 --workdir a b")
        ]
    assert len(set(re.findall(r"coordinator (127\.0\.0\.1:\d+)", out))) == 1


@pytest.mark.rotates
def test_one_process_runs_as_if_by_itself(script):
    job = start(script)
    assert finish(job)[0] == "coordinator None\nprocesses None\nindex None\n\n"


@pytest.mark.slow
def test_a_process_that_fails_ends_all_and_its_traceback_comes_last(script):
    began = time.monotonic()
    job = start(script, "--processes", 3, "--", "raise")
    out, err = finish(job)
    assert job.returncode == 1
    assert time.monotonic() - began < 60
    assert "[1] RuntimeError: process one is broken" in out
    assert "launch: process 1 failed first, with exit code 1; its last lines:" in err
    assert err.rstrip().endswith("RuntimeError: process one is broken")


@pytest.mark.rotates
@pytest.mark.parametrize(("number", "code"), only([(signal.SIGINT, 130), (signal.SIGTERM, 0)], (signal.SIGTERM, 0)))
def test_signals_are_passed_on_so_that_all_can_save(script, number, code):
    job = start(script, "--processes", 2, "--", "wait")
    seen = ""
    while seen.count("ready") < 2:
        line = job.stdout.readline()
        assert line, finish(job)
        seen += line
    job.send_signal(number)
    out, err = finish(job)
    assert (job.returncode, out.count("saved"), err) == (code, 2, "")


@pytest.mark.slow
def test_four_processes_train_and_go_on_where_they_stopped(tmp_path):
    arguments = ("--processes", 4, "--workdir", tmp_path / "run", "--", "--train.steps")
    first = start(TINY, *arguments, "5")
    out, err = finish(first, 300)
    assert first.returncode == 0, out[-3000:] + err[-3000:]
    again = start(TINY, *arguments, "10")
    out, err = finish(again, 300)
    assert again.returncode == 0, out[-3000:] + err[-3000:]
    steps = [
        int(step)
        for step in re.findall(r'"step": (\d+), "split": "train"', (tmp_path / "run/metrics.jsonl").read_text())
    ]
    assert steps == list(range(1, 11))
    assert "[0] " in out
    assert "data 4" in out
