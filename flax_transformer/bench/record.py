"""What was measured: values that JSON can hold, which print as a table and compare with others."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flax_transformer.bench.compare import compare, load
from flax_transformer.bench.report import render, save


class Record(dict):
    """Numbers of one benchmark: `target`, `environment`, `peak` and `programs`, by name."""

    def __str__(self) -> str:
        return render(self)

    def save(self, path: Path | str | None) -> None:
        """Write JSON; None writes nothing."""
        save(self, None if path is None else Path(path))

    def compare(self, earlier: Mapping[str, Any] | Path | str) -> str:
        """Say how this differs from an earlier record, or the file of one, and what is slower beyond the spread.

        Raises:
          ValueError: for a file that is no record, or one of another target or other shapes.
        """
        before = load(Path(earlier)) if isinstance(earlier, Path | str) else earlier
        return compare(before, self)
