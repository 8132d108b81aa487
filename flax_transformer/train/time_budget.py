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
CPU = "cpu_seconds"
"""Of all processors together, by this process: what a run costs where they are shared with others."""


class TimeBudget:
    """Seconds since the last `take`, and those of them that went to each of `PARTS`.

    It is the host's time: while it waits for data the device may still be at the step before, so the share of steps is
    at least what is told.
    """

    def __init__(self) -> None:
        self._began, self._parts, self._cpu = time.monotonic(), dict.fromkeys(PARTS, 0.0), time.process_time()

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
        """Return all seconds, the processors' and those of the parts as metrics, and begin again."""
        now, cpu, parts = time.monotonic(), time.process_time(), self._parts
        total, computed = now - self._began, cpu - self._cpu
        self._began, self._parts, self._cpu = now, dict.fromkeys(PARTS, 0.0), cpu
        return {TOTAL: total, CPU: computed, **{f"{part}_{TOTAL}": seconds for part, seconds in parts.items()}}


NAMES = (TOTAL, CPU, *(f"{part}_{TOTAL}" for part in PARTS))
"""Metrics that `TimeBudget` gives."""
SPEED = "_per_second"
"""What ends the name of a speed; that of what was counted is without it: `tokens_per_second`, `tokens`."""


def counted(record: Mapping[str, Any]) -> str | None:
    """Name what the record of a window has counted, exactly; None where it has but the speed.

    >>> counted({"loss": 2.0, "tokens": 4096.0, "tokens_per_second": 900.0})
    'tokens'
    """
    return next((name for name in record if f"{name}{SPEED}" in record), None)


def goodput(records: Sequence[Mapping[str, Any]]) -> str | None:
    """Return in a line which share of a run's time went to steps, from what it measured; None where nothing says.

    A step that was done again after a run was resumed counts once more as a step.

    >>> goodput([{"seconds": 8.0, "compiling_seconds": 1.0, "saving_seconds": 1.0}])
    '75.0 % of 8s in steps, 12.5 % compiling, 0.0 % waiting for data, 0.0 % evaluating, 12.5 % saving'
    """
    total, *parts = (sum(each[n] for each in records if _is_number(each.get(n))) for n in NAMES if n != CPU)
    if total <= 0:
        return None
    rest = ", ".join(
        f"{100 * seconds / total:.1f} % {part}" for seconds, part in zip(parts, PARTS.values(), strict=True)
    )
    return f"{100 * (total - sum(parts)) / total:.1f} % of {duration(total)} in steps, {rest}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and value >= 0
