"""Where the time of a run goes: steps, and what keeps it from them."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from flax_transformer.train.progress import duration

PARTS = {
    "compiling": "compiling", "waiting": "waiting for data", "evaluating": "evaluating", "saving": "saving",
}  # fmt: skip
"""What the host does instead of steps, and how it is told."""
TOTAL = "seconds"


class Spent:
    """Seconds since the last `take`, and those of them that went to each of `PARTS`.

    It is the host's time: while it waits for data the device may still be at the step before, so the share of steps is
    at least what is told.
    """

    def __init__(self) -> None:
        self._began, self._parts = time.monotonic(), dict.fromkeys(PARTS, 0.0)

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Count what is done within a `with` block to a part."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(part, time.monotonic() - began)

    def add(self, part: str, seconds: float) -> None:
        """Count seconds to a part."""
        self._parts[part] += seconds

    def take(self) -> dict[str, float]:
        """Give all seconds and those of the parts as metrics, and begin again."""
        now, parts = time.monotonic(), self._parts
        total = now - self._began
        self._began, self._parts = now, dict.fromkeys(PARTS, 0.0)
        return {TOTAL: total, **{f"{part}_{TOTAL}": seconds for part, seconds in parts.items()}}


NAMES = (TOTAL, *(f"{part}_{TOTAL}" for part in PARTS))
"""Metrics that `Spent` gives."""


def goodput(records: Sequence[Mapping[str, Any]]) -> str | None:
    """Tell in a line which share of a run's time went to steps, from what it measured; None where nothing says.

    A step that was done again after a run was resumed counts once more as a step.

    >>> goodput([{"seconds": 8.0, "compiling_seconds": 1.0, "saving_seconds": 1.0}])
    '75.0 % of 8s in steps, 12.5 % compiling, 0.0 % waiting for data, 0.0 % evaluating, 12.5 % saving'
    """
    sums = {name: sum(each[name] for each in records if _is_number(each.get(name))) for name in NAMES}
    total = sums.pop(TOTAL)
    if total <= 0:
        return None
    rest = ", ".join(
        f"{100 * seconds / total:.1f} % {told}" for seconds, told in zip(sums.values(), PARTS.values(), strict=True)
    )
    return f"{100 * (total - sum(sums.values())) / total:.1f} % of {duration(total)} in steps, {rest}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and value >= 0
