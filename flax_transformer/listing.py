"""What messages name of many things, and of long paths."""

import itertools
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any


def listing(names: Collection[Any], most: int = 5) -> str:
    """Name the first few of many things, and say how many there are.

    >>> listing(["a", "b"])
    'a, b'
    >>> listing(range(10_514))
    '0, 1, 2, 3, 4, … (10,514)'
    >>> listing([])
    'none'
    """
    first = ", ".join(_cut(str(name)) for name in itertools.islice(names, most))
    return f"{first}, … ({len(names):,})" if len(names) > most else first or "none"


def _cut(name: str, most: int = 60) -> str:
    return name if len(name) <= most else f"{name[:most]}…"


def short_path(path: str | os.PathLike) -> str:
    """Give a path as a person at this terminal would type it: relative where it lies below the current folder.

    >>> short_path("/nowhere/at/all")
    '/nowhere/at/all'
    """
    whole = Path(os.path.abspath(path))
    try:
        near = whole.relative_to(Path.cwd())
        return str(near if near.parts else whole)
    except (ValueError, OSError):  # elsewhere, or there is no current folder any more
        return str(whole)
