"""Cross-entropy over a vocabulary of 50,000, whole and in chunks: memory, time, and whose gradient is nearer the truth.

    python benchmarks/chunked_loss.py [--rounds 6] [--json benchmarks/results/chunked-loss-cpu.json]

`ops.chunked_cross_entropy` never holds all logits; `ops.cross_entropy(hidden @ embedding.T, …)` does. Both give value
and gradients by hidden states and embedding, for 2,048 tokens of width 512 in float32 with label smoothing 0.1. Steps
take turns, so that a noisy machine hurts both. Memory is what the compiled programs ask for. Gradients are compared
with NumPy's in float64, as the largest difference relative to the largest entry.
"""

import argparse
import json
import statistics
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from flax_transformer.bench import environment
from flax_transformer.ops import chunked_cross_entropy, cross_entropy

TOKENS, WIDTH, VOCAB, SMOOTHING = 2_048, 512, 50_000, 0.1
BARS = {"memory": 0.6, "seconds": 1.05, "gradient": 1e-6}


def whole(hidden, embedding, labels):
    return cross_entropy(hidden @ embedding.T, labels, label_smoothing=SMOOTHING)[0]


def chunked(hidden, embedding, labels, chunk):
    return chunked_cross_entropy(hidden, embedding, labels, label_smoothing=SMOOTHING, chunk=chunk)[0]


def make_inputs():
    random = np.random.default_rng(0)
    hidden = random.standard_normal((TOKENS, WIDTH)).astype(np.float32)
    embedding = (random.standard_normal((VOCAB, WIDTH)) * WIDTH**-0.5).astype(np.float32)
    return hidden, embedding, random.integers(0, VOCAB, TOKENS).astype(np.int32)


def reference(hidden, embedding, labels):
    """Gradients in float64: the softmax less the smoothed target, times embedding or hidden states."""
    hidden, embedding = hidden.astype(np.float64), embedding.astype(np.float64)
    by_hidden, by_embedding = np.zeros_like(hidden), np.zeros_like(embedding)
    for start in range(0, TOKENS, 256):
        rows = slice(start, start + 256)
        logits = hidden[rows] @ embedding.T
        slope = np.exp(logits - logits.max(1, keepdims=True))
        slope /= slope.sum(1, keepdims=True)
        slope -= SMOOTHING / VOCAB
        slope[np.arange(len(slope)), labels[rows]] -= 1 - SMOOTHING
        by_hidden[rows] = slope @ embedding
        by_embedding += slope.T @ hidden[rows]
    return by_hidden, by_embedding


def distance(a, b) -> float:
    return float(np.abs(np.asarray(a, np.float64) - b).max() / np.abs(b).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--chunk", type=int, nargs="+", default=[256, 512, 1024])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    inputs = make_inputs()
    exact = reference(*inputs)
    arrays = [jnp.asarray(x) for x in inputs]
    losses = {"whole": whole, **{f"chunk {size}": partial(chunked, chunk=size) for size in options.chunk}}
    steps = {name: jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*arrays).compile() for name, loss in losses.items()}
    gradients = {name: jax.device_get(step(*arrays)[1]) for name, step in steps.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.rounds):
        for name, step in steps.items():
            began = time.perf_counter()
            jax.block_until_ready(step(*arrays))
            seconds[name].append(time.perf_counter() - began)
    results = []
    for name, step in steps.items():
        by_hidden, by_embedding = gradients[name]
        results.append(
            {
                "loss": name,
                "temporary_bytes": step.memory_analysis().temp_size_in_bytes,
                "seconds": statistics.median(seconds[name]),
                "all_seconds": seconds[name],
                "hidden_gradient_to_float64": distance(by_hidden, exact[0]),
                "embedding_gradient_to_float64": distance(by_embedding, exact[1]),
                "hidden_gradient_to_whole": distance(by_hidden, gradients["whole"][0].astype(np.float64)),
                "embedding_gradient_to_whole": distance(by_embedding, gradients["whole"][1].astype(np.float64)),
            }
        )
    print(f"{TOKENS:,} tokens, width {WIDTH}, vocabulary {VOCAB:,}, float32; ratios to whole logits (bars {BARS})")
    base = results[0]
    for result in results:
        pairs = [a / b for a, b in zip(result["all_seconds"], base["all_seconds"], strict=True)]
        result["memory_ratio"] = result["temporary_bytes"] / base["temporary_bytes"]
        result["seconds_ratio"] = statistics.median(pairs)
        print(
            f"{result['loss']:<11} memory {result['temporary_bytes'] / 1e6:4.0f} MB ({result['memory_ratio']:.2f}×)  "
            f"time {result['seconds']:.2f} s ({result['seconds_ratio']:.2f}×, {min(pairs):.2f} to {max(pairs):.2f})  "
            f"gradients by hidden and embedding: to float64 {result['hidden_gradient_to_float64']:.1e}, "
            f"{result['embedding_gradient_to_float64']:.1e}; to whole {result['hidden_gradient_to_whole']:.1e}, "
            f"{result['embedding_gradient_to_whole']:.1e}"
        )
    if options.json:
        options.json.write_text(json.dumps({"environment": environment(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
