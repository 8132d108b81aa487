"""Compiled training steps on disk: made by a plan before there is a slice, or by an earlier start, and loaded.

A file is named by all that its program depends on: what was traced, the devices in their order, the compiler's version
and flags. So it is found where it matches; where anything differs there is none, and the step is compiled. Programs are
code: whoever can write into the folder decides what runs.
"""

import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from flax_transformer.atomic import write_file
from flax_transformer.train.progress import duration

COMPILERS = ("libtpu", "jax-cuda13-plugin", "jax-cuda12-plugin")


def digest(program: str, devices: Mapping[str, Any]) -> str:
    """Name all that what a compiler makes of a program depends on."""
    flags = {name: os.environ.get(name) for name in ("LIBTPU_INIT_ARGS", "XLA_FLAGS")}
    versions = {name: installed(name) for name in ("jax", "jaxlib", *COMPILERS)}
    return hashlib.sha256(
        json.dumps([canonical(program), devices, flags, versions], sort_keys=True).encode()
    ).hexdigest()[:32]


_NAME = re.compile(r'@("[^"]+"|[\w.$-]+)')


def canonical(program: str) -> str:
    """Name what a program in MLIR does, whatever its functions are called: JAX numbers them as it has traced before."""
    head, *functions = re.split(r"^  func\.func ", program, flags=re.MULTILINE)
    bodies = {_NAME.search(each)[1]: each[: each.rindex("\n  }")].partition("(")[2] for each in functions}

    @cache
    def meaning(name: str) -> str:
        body = _NAME.sub(lambda found: meaning(found[1]) if found[1] in bodies else found[0], bodies[name])
        return hashlib.sha256(body.encode()).hexdigest()

    return head + meaning("main")


def installed(package: str) -> str | None:
    """Return the version of a package; None where it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def processor() -> str:
    """Return what tells processors of different instructions apart."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        known = "".join(next((line for line in lines if line.startswith(("flags", "Features"))), ""))
    except OSError:
        known = platform.processor()
    return hashlib.sha256(known.encode()).hexdigest()[:8]


def programs_folder(name: str) -> Path:
    """Make a folder of programs where there is none.

    Raises:
      ValueError: it cannot be made.
    """
    try:
        (folder := Path(name)).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"programs must be a folder that can be made, got {name}: {error.strerror}") from error
    return folder


def program_file(folder: Path, lowered: jax.stages.Lowered, devices: Sequence[jax.Device]) -> Path:
    """Name the file of a program for devices, which are in the mesh's order."""
    kinds = sorted({f"{each.platform} {each.device_kind}" for each in devices})
    here = processor() if devices[0].platform == "cpu" else ""
    return folder / digest(lowered.as_text(), {"kinds": kinds, "order": [each.id for each in devices], "on": here})


@contextmanager
def compiled_here() -> Iterator[None]:
    """Compile without JAX's own cache within a `with` block: on CPU, what came from there cannot be written again."""
    enabled = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()


def save_program(file: Path, compiled: jax.stages.Compiled) -> None:
    """Write a program, at once or not at all, as others may look."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, serialize_executable.serialize(compiled)[0])


def load_program(file: Path, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Load what `save_program` has written of the same program.

    Raises:
      OSError: there is no such file.
      ValueError: it is damaged.
    """
    written = file.read_bytes()
    try:
        return serialize_executable.deserialize_and_load(written, lowered.in_tree, lowered.out_tree)
    except Exception as error:  # of pickle, and of each device's own runtime
        raise ValueError(f"a compiled program that is damaged, {' '.join(str(error).split())[:200]}: {file}") from error


class CachedStep:
    """A jitted training step whose programs, one for each shape of a batch, are kept in a folder."""

    def __init__(self, step: Callable, folder: Path, devices: Sequence[jax.Device]):
        self._step, self._folder, self._devices = step, folder, devices
        self._programs: dict[Any, Callable] = {}

    def __call__(self, state: Any, batch: Any) -> Any:
        """Take a step."""
        leaves, form = jax.tree.flatten(batch)
        kind = form, tuple(jax.typeof(leaf) for leaf in leaves)
        if kind not in self._programs:
            self._programs[kind] = self._program(state, batch)
        return self._programs[kind](state, batch)

    def _program(self, state: Any, batch: Any) -> Callable:
        began, lowered = time.monotonic(), self._step.lower(state, batch)
        file = program_file(self._folder, lowered, self._devices)
        try:
            program = load_program(file, lowered)
        except (OSError, ValueError) as error:
            if not isinstance(error, FileNotFoundError):
                _say(f"the step is compiled again: {error}")
            with compiled_here():
                program = lowered.compile()
            self._keep(file, program)
        else:
            took = duration(time.monotonic() - began)
            _say(f"the training step was compiled before: traced and loaded in {took}, {file}")
        return program

    def _keep(self, file: Path, program: jax.stages.Compiled) -> None:
        if jax.process_index() != 0:
            return
        try:
            save_program(file, program)
        except (OSError, ValueError, NotImplementedError) as error:
            _say(f"the compiled step is not kept: {error}")


def _say(text: str) -> None:
    if jax.process_index() == 0:
        print(text, flush=True)
