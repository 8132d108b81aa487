"""Loading a checkpoint of GPT-2's size beside `transformers`, taking turns in one process, files in the page cache.

    python benchmarks/load_peer.py [--rounds 8] [--json FILE]

The checkpoint is a random GPT-2 (124 M parameters in float32) written to a temporary folder. Two times are taken.
"call" ends when the function returns: on a CPU `transformers` then has mapped the file and read nothing of it, while
ours has every parameter in memory of its own. "resident" ends when every page of every parameter has been looked at
once, so that both have the weights. Both are taken in a process that has loaded ten times: its memory is then at hand.
"fresh" is the first load of a new process, after its imports, until the weights are resident; there ours waits for the
system to find 500 MB of memory, which theirs does not need. A ratio is our time in parts of theirs. Memory is the peak
of a fresh process that loads with ours, above what it had before and what the parameters take.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
from flax import nnx
from results import arguments, turns, write

from flax_transformer import hub
from flax_transformer.models.causal import Causal
from flax_transformer.models.text.gpt2 import gpt2

WARM = 10
"""Loads before any is timed."""

PAGE = 1024
"""Parameters on a page of 4 KiB."""

ALONE = """
import json, sys, jax
from flax_transformer import hub

def peak(field="VmHWM"):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

jax.block_until_ready(jax.numpy.zeros(1) + 1)
before = peak("VmRSS")
model = jax.block_until_ready(hub.load(sys.argv[1]))
leaves = jax.tree.leaves(model)
print(json.dumps({
    "beyond_parameters": peak() - before - sum(leaf.nbytes for leaf in leaves),
    "largest_tensor": max((leaf[0] if leaf.ndim > 2 else leaf).nbytes for leaf in leaves),
}))
"""


FRESH = """
import sys, time
sys.path.insert(0, sys.argv[3])
import load_peer
import jax
jax.block_until_ready(jax.numpy.zeros(1) + 1)
load = getattr(load_peer, sys.argv[2])(sys.argv[1], True)
began = time.perf_counter()
load()
print(time.perf_counter() - began)
"""


def make(folder: str) -> None:
    model = jax.jit(lambda: Causal(gpt2(), rngs=nnx.Rngs(0)))()
    hub.save(hub.wrap(model, "GPT2LMHeadModel"), folder)


def our_load(folder: str, resident: bool):
    touch = jax.jit(lambda model: sum(leaf.reshape(-1)[::PAGE].sum() for leaf in jax.tree.leaves(model)))

    def run():
        loaded = jax.block_until_ready(hub.load(folder))
        if resident:
            float(touch(loaded.model))

    return run


def their_load(folder: str, resident: bool):
    from transformers import AutoModelForCausalLM

    def run():
        loaded = AutoModelForCausalLM.from_pretrained(folder)
        if resident:
            sum(float(parameter.detach().flatten()[::PAGE].sum()) for parameter in loaded.parameters())

    return run


def compare(folder: str, rounds: int, resident: bool) -> dict:
    runs = {"ours": our_load(folder, resident), "transformers": their_load(folder, resident)}
    for run in (*runs.values(),) * WARM:
        run()
    return summary("resident" if resident else "call", turns(runs, rounds, warm=True), rounds)


def fresh(folder: str, rounds: int) -> dict:
    def run(loader: str) -> float:
        command = [sys.executable, "-c", FRESH, folder, loader, str(Path(__file__).parent)]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])

    seconds = [(run("our_load"), run("their_load")) for _ in range(rounds)]
    ours, theirs = map(list, zip(*seconds, strict=True))
    return summary("fresh", {"ours": ours, "transformers": theirs}, rounds)


def summary(case: str, seconds: dict[str, list[float]], rounds: int) -> dict:
    mine, theirs = (statistics.median(seconds[who]) for who in seconds)
    pairs = [a / b for a, b in zip(seconds["ours"], seconds["transformers"], strict=True)]
    return {
        "case": case,
        "rounds": rounds,
        "seconds": {"ours": mine, "transformers": theirs},
        "ratio": mine / theirs,
        "ratio_range": [min(pairs), max(pairs)],
    }


def memory(folder: str) -> dict:
    done = subprocess.run([sys.executable, "-c", ALONE, folder], capture_output=True, text=True, check=True)
    return {"case": "memory", **json.loads(done.stdout.splitlines()[-1])}


def main() -> None:
    options = arguments(__doc__, 8)
    import transformers

    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        make(folder)
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        results = [compare(folder, options.rounds, resident) for resident in (False, True)]
        results.append(fresh(folder, max(options.rounds // 2, 1)))
        results.append({**memory(folder), "checkpoint": size})
    for result in results[:3]:
        low, high = result["ratio_range"]
        told = " ".join(f"{who} {seconds:.3f} s" for who, seconds in result["seconds"].items())
        print(f"{result['case']}: {told}, ratio {result['ratio']:.2f} (single {low:.2f} to {high:.2f})")
    extra, largest = results[3]["beyond_parameters"] / 1e6, results[3]["largest_tensor"] / 1e6
    print(f"memory: {extra:.0f} MB beyond the parameters at the peak; the largest tensor has {largest:.0f} MB")
    write(options.json, results, compared=("torch", "transformers"))


if __name__ == "__main__":
    main()
