"""What compression costs a checkpoint: saving and loading by Orbax, with and without, in turns.

    python benchmarks/save.py [--rounds 7] [--json benchmarks/results/save-cpu.json]

168 MB of weights of standard deviation 0.02, as float32 and as bfloat16, in ten arrays. The processor's time is that of
all threads.
"""

import statistics
import tempfile
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
from orbax.checkpoint import v1 as ocp
from results import arguments, turns, write

DTYPES = {"float32": (jnp.float32, 4096), "bfloat16": (jnp.bfloat16, 8192)}


def measure(weights: dict, compress: bool) -> dict[str, float]:
    """Save and load once."""
    context = ocp.Context()
    context.array.saving.use_compression = compress
    with tempfile.TemporaryDirectory() as folder, context, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the layout is read from the file
        path = Path(folder) / "weights"
        began, processor = time.perf_counter(), time.process_time()
        ocp.save(path, weights)
        saved, processor = time.perf_counter(), time.process_time() - processor
        jax.block_until_ready(ocp.load(path))
        loaded = time.perf_counter()
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return {"save": saved - began, "processor": processor, "load": loaded - saved, "megabytes": size / 1e6}


def compare(name: str, rounds: int) -> dict:
    """Save and load weights of one type both ways; medians."""
    dtype, columns = DTYPES[name]
    keys = jax.random.split(jax.random.key(0), 10)
    weights = {str(i): (0.02 * jax.random.normal(key, (1024, columns))).astype(dtype) for i, key in enumerate(keys)}
    found: dict[str, list[dict]] = {"plain": [], "compressed": []}
    turns({who: lambda who=who: found[who].append(measure(weights, who == "compressed")) for who in found}, rounds)
    medians = {
        who: {key: statistics.median(one[key] for one in measured) for key in measured[0]}
        for who, measured in found.items()
    }
    ratios = [f"{key} {value / medians['plain'][key]:.2f}×" for key, value in medians["compressed"].items()]
    print(f"{name}, compressed beside plain:", *ratios, sep="  ")
    return {"dtype": name, "rounds": rounds, **medians}


def main() -> None:
    options = arguments(__doc__, rounds=7)
    write(options.json, [compare(name, options.rounds) for name in DTYPES])


if __name__ == "__main__":
    main()
