"""Eight devices on one CPU, in a process of its own, as a process keeps the devices it began with."""

import functools
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
if tuple(map(int, version("jaxlib").split(".")[:2])) <= (0, 10):  # later ones may not know these and end at the flag
    QUICK += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
PATIENT = "--xla_cpu_collective_call_terminate_timeout_seconds=600"
"""Devices that share two cores, and those with others, may be late for each other."""
FLAGS = f"--xla_force_host_platform_device_count=8 {PATIENT} {QUICK}"
CACHE = {
    "jax_compilation_cache_dir": str(ROOT / ".programs"),
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
    "jax_persistent_cache_enable_xla_caches": "none",
}
"""Programs are compiled once, for workers, processes that tests start, and the next run; `make clean` forgets them."""


def share_programs():
    """Keep compiled programs here and in processes to come, and write all in one place: JAX makes one for each."""
    import jax
    from jax._src.interpreters import mlir

    for option, value in CACHE.items():
        os.environ[option.upper()] = str(value)
        jax.config.update(option, value)
    mlir.make_ir_context = functools.cache(mlir.make_ir_context)


_START = """
import os, runpy, sys
from tests.fake_devices import share_programs
share_programs()
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def on_eight(*command: str | Path) -> tuple[Any, str]:
    """Run Python with eight devices; give the JSON it printed last, and what it said on standard error."""
    env = {**os.environ, "XLA_FLAGS": FLAGS, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    start = ["-c", _START] if str(command[0]).endswith(".py") else []
    whole = [sys.executable, *start, *map(str, command)]
    done = subprocess.run(whole, env=env, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr
