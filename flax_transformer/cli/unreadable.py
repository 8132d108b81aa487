"""What commands do with several files: one that is damaged is named, and the others are gone on with."""

import os
import sys
from types import TracebackType


class Refused:
    """Files that could not be read: each is named on standard error at once, and any makes the exit code 1."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> "Refused":
        return self

    def __call__(self, file: str | os.PathLike, error: Exception) -> None:
        """Name a file and what is wrong with it."""
        name, said = os.fspath(file), str(error)
        print(f"error: {said if name in said else f'{name}: {said}'}", file=sys.stderr, flush=True)
        self.count += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        if kind is None and self.count:
            sys.exit(1)
