"""Eight devices on one CPU, in a process of its own, as a process keeps the devices it began with."""

import functools
import json
import multiprocessing
import os
import runpy
import sys
import tempfile
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
    "jax_persistent_cache_min_compile_time_secs": 0.05,
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


def on_eight(*command: str | Path) -> tuple[Any, str]:
    """Run Python with eight devices; give the JSON it printed last, and what it said on standard error.

    The process is forked from one that has imported the library, and has no devices yet.
    """
    with tempfile.TemporaryDirectory() as folder:
        process = _server().Process(target=_run, args=(folder, list(map(str, command))))
        process.start()
        process.join(1200)
        if process.is_alive():
            process.kill()
        said = (Path(folder) / "err").read_text()
        assert process.exitcode == 0, said[-3000:]
        return json.loads((Path(folder) / "out").read_text().splitlines()[-1]), said


@functools.cache
def _server() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jax", "flax_transformer.task.recipe", "tests.fake_devices"])
    return context


def _run(folder: str, command: list[str]) -> None:
    """Be a process that was started with this command, and write what it says to files."""
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(os.path.join(folder, name), os.O_CREAT | os.O_WRONLY), number)
    os.environ.update(XLA_FLAGS=FLAGS, JAX_PLATFORMS="cpu")
    os.chdir(ROOT)
    share_programs()
    import jax

    jax.config.update("jax_platforms", "cpu")
    sys.argv = command
    try:
        if command[0] == "-c":
            exec(compile(command[1], "-c", "exec"), {"__name__": "__main__"})
        else:
            sys.path[0] = os.path.dirname(command[0])
            runpy.run_path(command[0], run_name="__main__")
    finally:
        sys.stdout.flush()
