"""What depth costs: compiling a training step of 12, 24 and 48 layers, scanned and unrolled, and running it.

    python benchmarks/depth.py [--rounds 6] [--json benchmarks/results/depth-cpu.json]

The 2017 Transformer of width 128 with half of the layers in the encoder and half in the decoder, 16 × 32 tokens a side,
V = 8,000, Adam, float32. Scanned, a stack is one loop over its layers and compiles as one layer does; unrolled, XLA
sees every layer. Compilation is timed from nothing, in turns; steps of the two take turns too.
"""

import argparse
import json
import statistics
import time
from itertools import pairwise
from pathlib import Path

import jax
import optax
from flax import nnx

from flax_transformer.bench import environment
from flax_transformer.models.seq2seq import Seq2Seq, Seq2SeqConfig
from flax_transformer.models.text.transformer import transformer_tiny
from flax_transformer.nn import with_fields
from flax_transformer.objective import OBJECTIVES
from flax_transformer.train.state import init_state
from flax_transformer.train.step import make_train_step

BAR = 1.2


def config(layers: int, unroll: bool | int) -> Seq2SeqConfig:
    half = layers // 2
    return with_fields(transformer_tiny(8_000, dropout=0.1), depth=half, unroll=unroll)


def compile_step(layers: int, unroll: bool | int):
    """Compile a training step with nothing in memory; give what it took, and the step with its arguments."""
    cfg, optimizer = config(layers, unroll), optax.adam(1e-4)
    state = init_state(lambda key: Seq2Seq(cfg, rngs=nnx.Rngs(key)), optimizer, jax.random.key(0))
    batch = jax.device_put(Seq2Seq.example_batch(cfg, 16, 32))
    jax.clear_caches()
    step = jax.jit(make_train_step(OBJECTIVES[Seq2Seq.use], optimizer), donate_argnums=0)
    busy, times = time.process_time(), [time.perf_counter()]
    traced = step.trace(state, batch)
    times.append(time.perf_counter())
    lowered = traced.lower()
    times.append(time.perf_counter())
    compiled = lowered.compile()
    times.append(time.perf_counter())
    took = dict(zip(("trace", "lower", "compile"), (b - a for a, b in pairwise(times)), strict=True))
    took |= {"all": times[-1] - times[0], "cpu": time.process_time() - busy}
    took["lines"] = lowered.as_text().count("\n")
    return took, compiled, state, batch


def compile_times(depths: list[int], rounds: int) -> list[dict]:
    took: dict[int, list[dict]] = {depth: [] for depth in depths}
    for _ in range(rounds):
        for depth in depths:
            took[depth].append(compile_step(depth, 1)[0])
    results = []
    for depth in depths:
        result = {"layers": depth, "rounds": took[depth]}
        for kind in ("all", "cpu"):
            pairs = zip(took[depth], took[depths[0]], strict=True)
            result[f"{kind}_ratio"] = statistics.median(a[kind] / b[kind] for a, b in pairs)
        results.append(result)
    return results


def step_times(layers: int, rounds: int) -> dict:
    """Time scanned and unrolled steps of one depth in turns; also what compiling them took."""
    runs, result = {}, {"layers": layers, "step_seconds": {"scanned": [], "unrolled": []}, "compile_seconds": {}}
    for name, unroll in (("scanned", 1), ("unrolled", True)):
        took, *runs[name] = compile_step(layers, unroll)
        result["compile_seconds"][name] = took["all"]
    for number in range(rounds + 1):
        for name, (compiled, state, batch) in runs.items():
            began = time.perf_counter()
            state, metrics = compiled(state, batch)
            jax.block_until_ready((state, metrics))
            runs[name][1] = state
            if number:  # the first warms up
                result["step_seconds"][name].append(time.perf_counter() - began)
    pairs = zip(*result["step_seconds"].values(), strict=True)
    result["scanned_to_unrolled"] = statistics.median(a / b for a, b in pairs)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="compilations of each depth; three times as many steps")
    parser.add_argument("--depths", type=int, nargs="+", default=[12, 24, 48])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    first = options.depths[0]
    results = compile_times(options.depths, options.rounds)
    for result in results:
        median = {kind: statistics.median(took[kind] for took in result["rounds"]) for kind in result["rounds"][0]}
        parts = ", ".join(f"{kind} {median[kind]:.2f} s" for kind in ("trace", "lower", "compile"))
        print(
            f"{result['layers']} layers scanned: {median['lines']:,.0f} lines of StableHLO; {parts}; "
            f"{result['all_ratio']:.2f}× the time of {first} layers, "
            f"{result['cpu_ratio']:.2f}× its CPU time (bar {BAR}×)"
        )
    steps = step_times(first, 3 * options.rounds)
    scanned, unrolled = (statistics.median(times) for times in steps["step_seconds"].values())
    print(
        f"{first} layers: step {scanned:.3f} s scanned, {unrolled:.3f} s unrolled ({steps['scanned_to_unrolled']:.2f}×)"
    )
    compiling = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in steps["compile_seconds"].items())
    print(f"{first} layers: trace, lower and compile {compiling}")
    if options.json:
        record = {"environment": environment(), "compile": results, "step": steps}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
