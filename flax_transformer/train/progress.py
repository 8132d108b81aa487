"""What a run says while it goes on: a live line on a terminal, plain lines anywhere else."""

import re
import sys
import time
from typing import Literal


def duration(seconds: float) -> str:
    """Spell a duration: 42s, 3m05s, 2h07m."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"


def number(value: float) -> str:
    """Spell a metric in few characters: 4 significant digits, counts as integers."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


FRACTION = re.compile(r"(^|_)(accuracy|recall|ap\d*|[a-z]+_r\d+)(_|$)")
PERCENT = re.compile(r"(^|_)(exact_match|wer|cer|mean_error|error_\d+)(_|$)")


def unit_of(name: str) -> Literal["fraction", "percent", ""]:
    """Return whether, by its name, a metric is a fraction of 1, or a percentage; neither by default.

    >>> unit_of("probe_accuracy_layer_1"), unit_of("ap50"), unit_of("wer"), unit_of("bleu"), unit_of("count_error")
    ('fraction', 'fraction', 'percent', '', '')
    """
    return "fraction" if FRACTION.search(name) else "percent" if PERCENT.search(name) else ""


def percent(name: str, value: float) -> float:
    """Return a metric as people are told it: a fraction of 1 in percent, all else as it is."""
    return 100 * value if unit_of(name) == "fraction" else value


def titled(name: str) -> str:
    """Name a metric above a column of its values: `accuracy, %`."""
    return f"{name}, %" if unit_of(name) else name


def spelled(name: str, value: float) -> str:
    """Spell a metric with its unit: what is a fraction in metrics.jsonl is told to people in percent.

    >>> spelled("accuracy", 0.98765), spelled("wer", 12.5), spelled("loss", 0.25)
    ('98.77 %', '12.5 %', '0.25')
    """
    return number(percent(name, value)) + " %" * bool(unit_of(name))


class Plain:
    """A line for every report, for pipes and log files."""

    def __init__(self, steps: int, start: int):
        self._steps, self._start, self._began = steps, start, time.monotonic()

    def _remaining(self, step: int) -> str:
        done = step - self._start
        return duration((time.monotonic() - self._began) / done * (self._steps - step)) if done else "?"

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Report a training step."""
        shown = "  ".join(f"{_label(name)} {spelled(name, value)}" for name, value in metrics.items())
        self.say(f"step {step:>{len(str(self._steps))}}/{self._steps}  {shown}  left {self._remaining(step)}")

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, flush=True)

    def close(self) -> None:
        """Nothing is held."""


class Live(Plain):
    """A progress bar that stays in place on a terminal; what is said appears above it."""

    def __init__(self, steps: int, start: int):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        super().__init__(steps, start)
        columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.fields[shown]}"))
        self._progress = Progress(*columns, transient=True)
        self._bar = self._progress.add_task("", total=steps, completed=start, shown="compiling")
        self._progress.start()

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Move the bar and put the newest numbers beside it."""
        shown = "  ".join(f"{_label(name)} {spelled(name, value)}" for name, value in metrics.items())
        self._progress.update(self._bar, completed=step, shown=f"{shown}  left {self._remaining(step)}")

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Take the bar away."""
        self._progress.stop()


def _label(name: str) -> str:
    return {"learning_rate": "lr", "gradient_norm": "grad"}.get(name, name.replace("_per_second", "/s"))


class Silent(Plain):
    """Says nothing: for every process but the first."""

    def say(self, text: str) -> None:
        """Drop it."""


def make_progress(steps: int, start: int, *, first: bool = True) -> Plain:
    """Choose what fits where the output goes.

    Args:
      first: whether this is process 0; the others are silent.
    """
    if not first:
        return Silent(steps, start)
    return (Live if sys.stdout.isatty() else Plain)(steps, start)
