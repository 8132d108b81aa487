"""Text in columns, as every table on a terminal is laid out."""

from collections.abc import Iterable, Sequence

PUT = {"l": str.ljust, "r": str.rjust}


def align(rows: Iterable[Sequence[str]], sides: str) -> str:
    """Set rows in columns, each to its side: l or r, the last for all that follow.

    >>> print(align([("", "steps", "loss"), ("first", "1", "2.5")], "lr"))
           steps  loss
    first      1   2.5
    """
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    put = [PUT[side] for side in sides.ljust(len(widths), sides[-1])]
    lines = ("  ".join(to(cell, width) for to, cell, width in zip(put, row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
