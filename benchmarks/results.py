"""What every benchmark writes: where it ran, and what came out."""

import importlib.metadata
import json
import time
from pathlib import Path

from flax_transformer.bench import environment


def write(path: str | None, results: list[dict], *, compared: tuple[str, ...] = ()) -> None:
    """Write a result file, if one is asked for.

    Args:
      compared: packages ours was compared with.
    """
    if path is None:
        return
    where = {**environment(), **{name: importlib.metadata.version(name) for name in compared}}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps({"environment": where, "results": results}, indent=1) + "\n")


def turns(runs: dict, rounds: int, *, warm: bool = False) -> dict[str, list[float]]:
    """Time functions that take turns, so that a noisy machine hurts all alike; each returns when its work is done.

    Args:
      warm: pause before each turn, as the threads of OpenMP libraries keep a core busy for a while after their work,
        and run once untimed, so that nobody pays for the caches the others have filled.
    """
    seconds: dict[str, list[float]] = {who: [] for who in runs}
    for _ in range(rounds):
        for who, run in runs.items():
            if warm:
                time.sleep(0.3)
                run()
            began = time.perf_counter()
            run()
            seconds[who].append(time.perf_counter() - began)
    return seconds
