"""What messages name of many things, and of long paths."""

import itertools
import os
from collections.abc import Collection, Mapping
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


def without_folders(value: Any, folders: Collection[str | os.PathLike]) -> Any:
    """Leave folders out of the paths in texts, also of those in lists and dictionaries.

    >>> without_folders({"source": "/data/cats/1.png", "score": 0.5}, ["/data"])
    {'source': 'cats/1.png', 'score': 0.5}
    """
    if isinstance(value, Mapping):
        return {name: without_folders(each, folders) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(without_folders(each, folders) for each in value)
    if isinstance(value, str) and not value.startswith("data:"):
        for folder in folders:
            value = value.replace(f"{os.fspath(folder).rstrip('/')}/", "")
    return value


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
