"""What of a summary is copied from its source: runs of words that both have."""

import re
from typing import NamedTuple

LEAST = 2
"""Words of a run at least."""


class Copied(NamedTuple):
    """Spans of characters, begin and end, in the order of the summary."""

    source: tuple[tuple[int, int], ...]
    summary: tuple[tuple[int, int], ...]


def copied_spans(source: str, summary: str, least: int = LEAST) -> Copied:
    """Find the longest runs of words of a summary that are in its source, whatever their case, left to right.

    Of several places in the source the first is given.

    >>> copied_spans("Please send the new files to Ann.", "New files for Ann")
    Copied(source=((16, 25),), summary=((0, 9),))
    """
    read, wrote = ([(m[0].lower(), *m.span()) for m in re.finditer(r"\w+", text)] for text in (source, summary))
    begins: dict[str, list[int]] = {}
    for at, (word, *_) in enumerate(read):
        begins.setdefault(word, []).append(at)
    found: list[tuple[tuple[int, int], tuple[int, int]]] = []
    at = 0
    while at < len(wrote):
        runs = [(_run(read, wrote, start, at), -start) for start in begins.get(wrote[at][0], ())]
        length, start = max(runs, default=(0, 0))
        if length >= least:
            found.append(((read[-start][1], read[length - start - 1][2]), (wrote[at][1], wrote[at + length - 1][2])))
        at += length if length >= least else 1
    return Copied(tuple(one for one, _ in found), tuple(other for _, other in found))


def _run(read: list, wrote: list, start: int, at: int) -> int:
    """Count the words that both have in common from there on."""
    length = 0
    while start + length < len(read) and at + length < len(wrote) and read[start + length][0] == wrote[at + length][0]:
        length += 1
    return length
