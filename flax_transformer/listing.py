"""Lists in messages, as long as people read them."""

from collections.abc import Iterable
from typing import Any

MOST = 8
"""Items that a message names."""
LONGEST = 60
"""Characters that it shows of each."""


def listed(items: Iterable[Any], most: int = MOST) -> str:
    """Name the first items, each cut where it is long, and say how many there are where that is not all.

    >>> listed(["a", "b"]), listed(range(10_000), 3), listed([])
    ('a, b', '0, 1, 2, … (10,000 in all)', 'none')
    """
    items = [str(item) for item in items]
    shown = [item if len(item) <= LONGEST else f"{item[: LONGEST - 1]}…" for item in items[:most]]
    more = f", … ({len(items):,} in all)" if len(items) > most else ""
    return ", ".join(shown) + more or "none"
