"""Where a number was measured: versions, devices, cores and the settings that move it."""

import os
import platform
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import flax
import jax
import jaxlib

VARIABLES = re.compile(r"^(XLA_|JAX_|LIBTPU_|NCCL_|CUDA_VISIBLE|OMP_|GLIBC_TUNABLES$|LD_PRELOAD$|NVIDIA_TF32)")
"""Environment variables that change how fast JAX compiles or runs."""


def environment() -> dict[str, Any]:
    """Describe this machine and process in values JSON can hold."""
    device = jax.devices()[0]
    return {
        "device": device.device_kind,
        "platform": device.platform,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "flax": flax.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "variables": {name: value for name, value in sorted(os.environ.items()) if VARIABLES.match(name)},
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }


def describe(where: dict[str, Any]) -> str:
    """Return an environment in one line.

    >>> describe({"devices": 1, "device": "cpu", "cpu": "AMD EPYC", "cores": 2, "jax": "0.10", "date": "2026-01-01"})
    '1 × cpu, AMD EPYC with 2 cores, jax 0.10, 2026-01-01'
    """
    host = f"{where['cpu']} with {where['cores']} cores"
    return f"{where['devices']} × {where['device']}, {host}, jax {where['jax']}, {where['date']}"


def _processor() -> str:
    """Name the processor; Linux knows it better than Python does."""
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _commit() -> str | None:
    """Name the commit this package is run from, with a plus where files differ from it; None outside of git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None
