"""What messages name of many things, and of long paths."""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

MOST = 8
"""Items that a message names."""
LONGEST = 60
"""Characters that it shows of each."""
ABSOLUTE = re.compile(r"(^|, )/(?:[^,/\n]+/)+(?=[^,/\n])")
"""The folders before the last part of an absolute path, alone or in a list."""


def listed(items: Iterable[Any], most: int = MOST, longest: int = LONGEST) -> str:
    """Name the first items, each cut where it is long, and say how many there are where that is not all.

    >>> listed(["a", "b"]), listed(range(10_000), 3), listed([])
    ('a, b', '0, 1, 2, … (10,000 in all)', 'none')
    """
    items = [str(item) for item in items]
    shown = [item if len(item) <= longest else f"{item[: longest - 1]}…" for item in items[:most]]
    more = f", … ({len(items):,} in all)" if len(items) > most else ""
    return ", ".join(shown) + more or "none"


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


def last_parts(value: Any) -> Any:
    """Return absolute paths by their last parts, also those in lists and dictionaries, as in a page that others read.

    >>> last_parts({"root": "/home/me/cats", "init": "google/vit", "text": ["/a/b/1.txt", "c/2.txt"]})
    {'root': 'cats', 'init': 'google/vit', 'text': ['1.txt', 'c/2.txt']}
    """
    if isinstance(value, Mapping):
        return {name: last_parts(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(last_parts(each) for each in value)
    return ABSOLUTE.sub(r"\1", value) if isinstance(value, str) else value


def short_path(path: str | os.PathLike) -> str:
    """Return a path as a person at this terminal would type it: relative where it lies below the current folder.

    >>> short_path("/nowhere/at/all")
    '/nowhere/at/all'
    """
    whole = Path(os.path.abspath(path))
    try:
        near = whole.relative_to(Path.cwd())
        return str(near if near.parts else whole)
    except (ValueError, OSError):  # elsewhere, or there is no current folder any more
        return str(whole)
