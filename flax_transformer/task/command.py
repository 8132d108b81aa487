"""What a command does at its two ends, ours and every experiment's file: begin without a fuss, and end without one."""

import contextlib
import glob
import importlib.util
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from flax_transformer.listing import short_path

DEVICES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*", "/dev/nvidia*", "/dev/dxg", "/dev/kfd")
"""Files that a TPU or a GPU has; a library that drives one opens them."""


def program() -> str:
    """Name the command line as a shell here finds it; an environment that is not activated needs a path."""
    if shutil.which("flax-transformer"):
        return "flax-transformer"
    beside = short_path(Path(sys.executable).parent / "flax-transformer")
    return beside if not Path(beside).is_absolute() else "python -m flax_transformer.cli"


def spelled(target: str, options: Sequence[str] = ()) -> tuple[str, tuple[str, ...]]:
    """Return one spelling to an experiment of a file, FILE.py:NAME, and its options, however they were typed.

    >>> spelled("wmt14.py", ["base", "--train.steps", "10"])
    ('wmt14.py:base', ('--train.steps', '10'))
    >>> spelled("wmt14.py:base"), spelled("wmt14.py"), spelled("bert_base")
    (('wmt14.py:base', ()), ('wmt14.py', ()), ('bert_base', ()))

    Raises:
      ValueError: a name said twice, otherwise.
    """
    file, name = split_target(target)
    named = bool(file.endswith(".py") and options and not options[0].startswith("-"))
    if named and name not in ("", options[0]):
        raise ValueError(f"an experiment is named once, got {target} and {options[0]}")
    name, rest = (options[0], options[1:]) if named else (name, options)
    return f"{file}:{name}" if name else target, tuple(rest)


def split_target(target: str) -> tuple[str, str]:
    """Split FILE.py:NAME; the name is empty where there is none, or where it is no Python file.

    >>> split_target("a:b/wmt14.py:base"), split_target("owner/name:x")
    (('a:b/wmt14.py', 'base'), ('owner/name:x', ''))
    """
    file, _, name = target.rpartition(":")
    return (file, name) if file.endswith(".py") else (target, "")


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Run what a person has asked for on a terminal; who has read enough of what it prints, as `head`, may go.

    Raises:
      SystemExit: with 141, as for other programs, once nobody reads on.
    """
    settle_platform()
    warnings.filterwarnings("ignore", "Image size .* exceeds limit")  # Pillow's; `data.image.decode` refuses it
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at its end
        sys.exit(141)


def settle_platform() -> None:
    """Have JAX take the CPU at once where the TPU's library is installed, as for `plan`, and no accelerator is there.

    Left alone JAX starts that library, which looks for its machine on the network and prints what it does not find.
    Whoever has set JAX_PLATFORMS is obeyed.
    """
    if os.environ.get("JAX_PLATFORMS") or importlib.util.find_spec("libtpu") is None or any(map(glob.glob, DEVICES)):
        return
    os.environ["JAX_PLATFORMS"] = "cpu"  # read when JAX is imported, here and in processes that this one starts
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_platforms", "cpu")
