"""Compiled programs that commands keep on disk, so that the next command need not compile them again."""

import os
import platform
import sys
import tempfile
from pathlib import Path

FOLDER = "FLAX_TRANSFORMER_PROGRAMS"
"""The variable that names another folder; empty, nothing is kept."""
SIZE = 2 * 2**30
"""Bytes at most; what was not used for longest goes first."""


def keep_programs() -> None:
    """Set JAX's compilation cache, unless the user has told JAX where to, or the folder cannot be ours alone.

    Programs are machine code, so nobody else may write there, and processors that differ share none.
    """
    import jax

    from flax_transformer.train.compiled_step import processor

    if jax.config.jax_compilation_cache_dir or os.environ.get(FOLDER) == "":
        return
    try:
        folder = _root() / f"{platform.machine()}-{processor()}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        if hasattr(os, "getuid") and folder.stat().st_uid != os.getuid():
            return
    except (OSError, RuntimeError):  # read-only, full, or no home
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_max_size", SIZE)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _root() -> Path:
    """Name the folder for programs, by the platform's convention.

    Raises:
      RuntimeError: there is no home to put it in.
    """
    if os.environ.get(FOLDER):
        return Path(os.environ[FOLDER])
    if sys.platform == "darwin":
        caches = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        caches = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "flax_transformer" / "programs"
