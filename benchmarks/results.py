"""What every benchmark writes: where it ran, and what came out."""

import argparse
import importlib.metadata
import json
import random
import statistics
import time
from pathlib import Path

from flax_transformer.bench import environment


def write(
    path: str | None, results: list[dict], *, compared: tuple[str, ...] = (), proves: tuple[str, str] | None = None
) -> None:
    """Write a result file, if one is asked for.

    Args:
      compared: packages ours was compared with.
      proves: of which model or part docs/matrix.md says what with it.
    """
    if path is None:
        return
    where = {**environment(), **{name: importlib.metadata.version(name) for name in compared}}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    said = {} if proves is None else {"proves": proves}
    Path(path).write_text(json.dumps({**said, "environment": where, "results": results}, indent=1) + "\n")


def turns(runs: dict, rounds: int, *, warm: bool = False) -> dict[str, list[float]]:
    """Time functions that take turns, so that a noisy machine hurts all alike; each returns when its work is done.

    Every round has an order of its own, so that nobody always comes after the same other.

    Args:
      warm: pause before each turn, as the threads of OpenMP libraries keep a core busy for a while after their work,
        and run once untimed, so that nobody pays for the caches the others have filled.
    """
    seconds: dict[str, list[float]] = {who: [] for who in runs}
    order = random.Random(0)
    for _ in range(rounds):
        for who, run in order.sample(list(runs.items()), len(runs)):
            if warm:
                time.sleep(0.3)
                run()
            began = time.perf_counter()
            run()
            seconds[who].append(time.perf_counter() - began)
    return seconds


def ratios(seconds: dict[str, list[float]], ours: str = "ours") -> dict[str, dict]:
    """Say how many times as long as ours each other took: the ratio of medians, and the range of single rounds."""
    mine = seconds[ours]
    result = {}
    for who, theirs in seconds.items():
        if who != ours:
            pairs = [b / a for a, b in zip(mine, theirs, strict=True)]
            median = statistics.median(theirs) / statistics.median(mine)
            result[who] = {"ratio": median, "ratio_range": [min(pairs), max(pairs)]}
    return result


def spell(value: dict) -> str:
    """Spell one of `ratios`."""
    low, high = value["ratio_range"]
    return f"{value['ratio']:.2f}× (single {low:.2f} to {high:.2f})"


def arguments(description: str | None, rounds: int) -> argparse.Namespace:
    """Read the options every benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json")
    return parser.parse_args()
