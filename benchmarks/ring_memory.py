"""Memory per device as the sequence and the devices it is split over double together: ring attention and others.

    python benchmarks/ring_memory.py [--json benchmarks/results/ring-memory-cpu.json]

Causal attention forward and backward, one sequence of 4,096 positions a device, 8 query heads that share 2 key/value
heads, H = 64, bfloat16, compiled for 2, 4 and 8 devices of this machine's CPU. Memory is what the compiled program asks
for beside its operands and results, on each device; nothing is run. `xla` and `blockwise` are what the compiler makes
of the split sequence by itself: they gather keys and values, and `xla` holds all scores of a device's queries.
"""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import re
from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from results import arguments, write

from flax_transformer.ops import Mask, attention
from flax_transformer.parallel import MeshConfig, make_mesh

LENGTH, HEADS, KV_HEADS, WIDTH = 4_096, 8, 2, 64
BAR = 1.1
COLLECTIVES = re.compile(r"(all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)(?:-start)?\(")


def both(backend, q, k, v, pull):
    out, back = jax.vjp(partial(attention, mask=Mask(causal=True), backend=backend), q, k, v)
    return out, back(pull)


def measure(backend: str, devices: int) -> dict:
    mesh = make_mesh(MeshConfig(data=1, sequence=devices), jax.devices()[:devices])
    place = NamedSharding(mesh, PartitionSpec(None, "sequence"))
    q, k = (
        jax.ShapeDtypeStruct((1, LENGTH * devices, heads, WIDTH), jnp.bfloat16, sharding=place)
        for heads in (HEADS, KV_HEADS)
    )
    with jax.set_mesh(mesh):
        compiled = jax.jit(partial(both, backend), out_shardings=place).lower(q, k, k, q).compile()
    memory = compiled.memory_analysis()
    return {
        "backend": backend, "devices": devices, "length": LENGTH * devices,
        "operand_bytes": memory.argument_size_in_bytes, "result_bytes": memory.output_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes, "collectives": Counter(COLLECTIVES.findall(compiled.as_text())),
    }  # fmt: skip


def main() -> None:
    options = arguments(__doc__, 1)
    results = []
    for backend in ("ring", "blockwise", "xla"):
        for devices in (2, 4, 8):
            result = measure(backend, devices)
            results.append(result)
            grown = result["temporary_bytes"] / results[-1 - (devices > 2) - (devices > 4)]["temporary_bytes"]
            found = ", ".join(f"{count} {kind}" for kind, count in sorted(result["collectives"].items()))
            bar = f", bar {BAR}×" if backend == "ring" else ""
            print(
                f"{backend:<10}{devices} devices, {result['length']:>6,} positions: "
                f"{result['temporary_bytes'] / 2**20:>8,.1f} MiB ({grown:.2f}×{bar}); {found}",
                flush=True,
            )
    write(options.json, results, proves=("attention", "memory of a device's part of the ring"))


if __name__ == "__main__":
    main()
