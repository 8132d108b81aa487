"""A watchdog ends what hangs, and nothing else; what hangs for real is in tests/reliability."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.rotates, pytest.mark.proves("many processes", "time for which a run is stopped is no hang")]

STEPS = """
import sys, time
from pathlib import Path
from flax_transformer.train.watchdog import Watchdog
with Watchdog(1.0, Path(sys.argv[1])) as dog:
    dog.beat()
    print("ready", flush=True)
    for _ in range(10):
        time.sleep(0.2)
        dog.beat()
    print("done", flush=True)
"""


def test_a_process_that_was_stopped_goes_on(tmp_path):
    run = subprocess.Popen([sys.executable, "-c", STEPS, str(tmp_path / "stacks.txt")], stdout=subprocess.PIPE)
    assert run.stdout.readline() == b"ready\n"
    run.send_signal(signal.SIGSTOP)
    time.sleep(3)  # three times what a step may take, a quarter of what faulthandler's timer gives
    os.kill(run.pid, signal.SIGCONT)
    assert run.communicate(timeout=60)[0] == b"done\n"
    assert run.returncode == 0
    assert not (tmp_path / "stacks.txt").exists()
