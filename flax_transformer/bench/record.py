"""What was measured: values that JSON can hold, which print as a table and compare with earlier ones."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flax_transformer.bench.report import render
from flax_transformer.text_table import align

ENVIRONMENT = ("device", "devices", "cpu", "cores", "jax", "jaxlib", "flax", "python", "variables")
"""What may explain a difference by itself."""
SINGLE = {
    "trace": "trace",
    "lower": "lower",
    "compile": "compile",
    "compile_cached": "compile from the cache",
    "first": "first run",
}
MEMORY = 1.01
"""Memory has no noise; a hundredth is left to the compiler's alignment."""


class Record(dict):
    """Numbers of one benchmark: `target`, `environment`, `peak` and `programs`, by name."""

    def __str__(self) -> str:
        return render(self)

    @property
    def faults(self) -> list[str]:
        """Programs that were compiled again after their first run, each with what had changed."""
        return [
            f"{name} compiled {each['recompiles']} programs after its first run: {'; '.join(each['causes'])}"
            for name, each in self["programs"].items()
            if each["recompiles"]
        ]

    def save(self, path: Path | str | None) -> None:
        """Write JSON; None writes nothing."""
        save(self, None if path is None else Path(path))

    def compare(self, earlier: Mapping[str, Any] | Path | str) -> str:
        """Return how this differs from an earlier record, or the file of one, and what is slower beyond the spread.

        Raises:
          ValueError: for a file that is no record, or one of another target or other shapes.
        """
        return compare(load(Path(earlier)) if isinstance(earlier, Path | str) else earlier, self)


def save(record: dict[str, Any], path: Path | None) -> None:
    """Write a record as JSON; None writes nothing."""
    if path is not None:
        path.write_text(json.dumps(record, indent=1) + "\n")


def check_file(path: Path | None) -> None:
    """Refuse a file that could not be written at the end, before the wait.

    Raises:
      ValueError: a folder, or a file in a folder that is not there or may not be written to.
    """
    if path is None:
        return
    if path.is_dir():
        raise ValueError(f"the numbers are written to a file, {path} is a folder")
    if not path.parent.is_dir():
        raise ValueError(f"the numbers are written to a file in a folder that is there, {path.parent} is none")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{path} cannot be written")


def load(path: Path) -> dict[str, Any]:
    """Read a record that `--json` wrote.

    Raises:
      ValueError: when it is none.
    """
    if not path.is_file():
        raise ValueError(f"a comparison needs an earlier result, there is no file {path}")
    try:
        record = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(record, dict) or not {"target", "environment", "programs"} <= record.keys():
        raise ValueError(f"{path} is no result of `flax-transformer bench`: it needs target, environment and programs")
    return record


def check_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Refuse to compare two targets that are not the same.

    Raises:
      ValueError: says what differs.
    """
    differ = [
        f"{name} {before.get(name)} and {after.get(name)}"
        for name in ("name", "dtype", "shape", "mesh")
        if before.get(name) != after.get(name)
    ]
    if differ:
        raise ValueError(f"only results of the same target and shapes compare, got {'; '.join(differ)}")


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str, float, str]]:
    """List (program, quantity, after / before, verdict) for all that both records measured.

    A step is slower, or faster, when each median lies outside the other's 5 to 95 % range. Quantities measured once,
    as compile times are, get a ratio and no verdict.

    Raises:
      ValueError: when the two did not measure the same thing.
    """
    check_same(before["target"], after["target"])
    found = []
    for name, new in after["programs"].items():
        old = before["programs"].get(name)
        if old is None:
            continue
        found.append((name, "step", new["step"]["median"] / old["step"]["median"], _verdict(old["step"], new["step"])))
        memory = new["peak_bytes"] / old["peak_bytes"]
        found.append((name, "memory", memory, "MORE" if memory > MEMORY else "less" if memory < 1 / MEMORY else "same"))
        timed = ((said, new[key], old[key]) for key, said in SINGLE.items())
        found += [(name, said, now / then, "") for said, now, then in timed if now and then]
    return found


def compare(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return how two records differ, first of all whether their environments do."""
    old, new = before["environment"], after["environment"]
    found = changes(before, after)
    rows = [[f"{program}: {name}", f"{ratio:.2f}×", verdict] for program, name, ratio, verdict in found]
    differ = [f"  {name}: {old.get(name)} → {new.get(name)}" for name in ENVIRONMENT if old.get(name) != new.get(name)]
    worse = [f"{program} {name} {ratio:.2f}×" for program, name, ratio, verdict in found if verdict.isupper()]
    for name, program in after["programs"].items():
        if program["recompiles"] > before["programs"].get(name, program)["recompiles"]:
            worse.append(f"{name} compiled {program['recompiles']} programs after its first run")
    lines = [f"compared with {old.get('date')}, commit {old.get('commit')}; above 1.00× is more time or memory now"]
    if differ:
        lines += ["WARNING: the environments differ, so these ratios are not of the code alone:", *differ]
    lines += ["", align([("", "now / then", ""), *rows], "lrl"), ""]
    lines.append(f"REGRESSION: {', '.join(worse)}" if worse else "no regression beyond the spread")
    return "\n".join(lines)


def _verdict(old: dict[str, float], new: dict[str, float]) -> str:
    if new["median"] > old["high"] and old["median"] < new["low"]:
        return "SLOWER"
    if new["median"] < old["low"] and old["median"] > new["high"]:
        return "faster"
    return "same within the spread"
