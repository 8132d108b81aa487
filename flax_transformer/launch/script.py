"""The shell scripts that run on workers."""

from pathlib import Path

WORKER = (Path(__file__).parent / "worker.sh").read_text()
"""Installs the code, mounts the bucket and runs the experiment."""

WATCH = (Path(__file__).parent / "watch.sh").read_text()
"""Runs the former so that it outlives an ssh connection."""
