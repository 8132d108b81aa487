"""Two commits side by side: forward, training and decoding of presets, the commits taking turns.

    python benchmarks/versions.py COMMIT [--rounds 3] [--json benchmarks/results/versions-cpu.json]

Each turn is `flax-transformer bench PRESET --json` in a process of its own, with the sources of one commit: of COMMIT,
checked out beside this tree for as long as it takes, or of this tree. The ratio is that of the medians of all rounds,
above 1 where this tree takes longer; beside it stand the ratios of single rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from results import write

TREE = Path(__file__).resolve().parents[1]
PRESETS = {
    "transformer_tiny": ("--steps", "20"),
    "transformer_base": ("--steps", "6", "--batch", "8"),
    "gpt2": ("--steps", "6", "--batch", "8"),
}


def measure(tree: Path, preset: str, path: Path) -> dict:
    """Bench a preset with a tree's sources."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "FLAX_TRANSFORMER_PROGRAMS": ""}
    command = [sys.executable, "-m", "flax_transformer.cli", "bench", preset, *PRESETS[preset], "--json", str(path)]
    subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)
    return json.loads(path.read_text())


def compared(then: list[dict], now: list[dict]) -> dict:
    """Say for each program how many times as long it takes now, and as much memory."""
    result = {}
    for program, first in then[0]["programs"].items():
        before, after = ([each["programs"][program]["step"]["median"] for each in runs] for runs in (then, now))
        single = [b / a for a, b in zip(before, after, strict=True)]
        result[program] = {
            "step": statistics.median(after) / statistics.median(before),
            "step_range": [min(single), max(single)],
            "memory": now[0]["programs"][program]["peak_bytes"] / first["peak_bytes"],
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="what this tree is compared with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "then"
        subprocess.run(["git", "worktree", "add", "--detach", str(other), options.commit], cwd=TREE, check=True)
        try:
            for preset, given in PRESETS.items():
                rounds = [
                    {name: measure(tree, preset, Path(folder) / "record.json") for name, tree in trees}
                    for number in range(options.rounds)
                    for trees in [[("then", other), ("now", TREE)][:: 1 if number % 2 else -1]]
                ]
                then, now = ([each[name] for each in rounds] for name in ("then", "now"))
                ratios = compared(then, now)
                commits = {"then": then[0]["environment"]["commit"], "now": now[0]["environment"]["commit"]}
                results.append({"preset": preset, "options": given, "rounds": options.rounds, **commits, **ratios})
                for program, each in ratios.items():
                    low, high = each["step_range"]
                    said = f"step {each['step']:.2f}× (single {low:.2f} to {high:.2f}), memory {each['memory']:.2f}×"
                    print(f"{preset:18} {program:8} {said}", flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(other)], cwd=TREE, check=True)
    write(options.json, results)


if __name__ == "__main__":
    main()
