"""Eight devices on one CPU, in a process of its own, as a process keeps the devices it began with."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""Compile fast rather than well: most of the tests' time goes into compiling small programs that run once."""
if tuple(map(int, version("jaxlib").split(".")[:2])) <= (0, 10):  # later ones have no others and end at the flag
    QUICK += " --xla_cpu_use_fusion_emitters=false"
PATIENT = "--xla_cpu_collective_call_terminate_timeout_seconds=600"
"""Devices that share two cores, and those with others, may be late for each other."""
FLAGS = f"--xla_force_host_platform_device_count=8 {PATIENT} {QUICK}"


def on_eight(*command: str | Path) -> tuple[Any, str]:
    """Run Python with eight devices; give the JSON it printed last, and what it said on standard error."""
    env = {**os.environ, "XLA_FLAGS": FLAGS, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    whole = [sys.executable, *map(str, command)]
    done = subprocess.run(whole, env=env, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr
