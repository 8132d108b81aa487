"""Several files, one of which may be damaged: it is named, and the others are gone on with."""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

File = str | os.PathLike

Refuse = Callable[[File, Exception], None]
"""`refuse(file, error)` is told of a file that cannot be read."""


def read_several(
    files: Iterable[File], read: Callable[[File], Any], refuse: Refuse | None = None, *, rows: int = 32
) -> Iterator[tuple[list[File], list[Any]]]:
    """Read files, `rows` at a time; those that cannot be read are left out.

    Args:
      read: gives what is in a file, such as a decoded image.
      refuse: is told of each that is left out; without it the first ends it.

    Yields:
      The files that could be read, at least one and at most `rows`, and what is in them.

    Raises:
      ValueError, OSError: as `read`, without `refuse`.
    """
    names: list[File] = []
    contents: list[Any] = []
    for file in files:
        try:
            contents.append(read(file))
        except (ValueError, OSError) as error:
            if refuse is None:
                raise
            refuse(file, error)
            continue
        names.append(file)
        if len(names) == rows:
            yield names, contents
            names, contents = [], []
    if names:
        yield names, contents
