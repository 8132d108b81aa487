"""MaxText's training steps of the decoders in `decoder_plan.py`, compiled for the same chips: memory, and bytes sent.

    python benchmarks/maxtext_plan.py --target gemma3_27b --json FILE    # beside MaxText 0.2.5, on Python 3.12

MaxText is no requirement of this project: `pip install --no-deps maxtext` and what it imports. The compiler is that of
`libtpu`; `decoder_plan.py` in the same environment has ours by the same one. A process compiles one target; what is in
the file already stays there. `sent` is counted by `parallel.collectives` for both.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.update({"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "DECOUPLE_GCLOUD": "TRUE"})

import jax
from results import write

from flax_transformer.bench.plan import WIRE
from flax_transformer.parallel.collectives import collective_bytes, collectives_of

COMMON = (
    "run_name=plan", "base_output_directory=/tmp/maxtext", "dataset_type=synthetic", "enable_checkpointing=false",
    "compile_topology=v5p-128", "compile_topology_num_slices=1", "per_device_batch_size=1", "max_target_length=4096",
    "remat_policy=full", "attention=flash", "scan_layers=true", "weight_dtype=float32", "dtype=bfloat16",
)  # fmt: skip
CASES = {
    "gemma3_27b": ("model_name=gemma3-27b", "ici_data_parallelism=4", "ici_fsdp_parallelism=16"),
    "qwen3_30b_a3b": (
        "model_name=qwen3-30b-a3b", "ici_fsdp_parallelism=16", "ici_expert_parallelism=4", "sparse_matmul=false",
        "megablox=false", "capacity_factor=1.25",
    ),
}  # fmt: skip
"""v5p-128 are 64 chips, 4 × 4 × 4."""


def compiled(settings: tuple[str, ...]) -> dict[str, Any]:
    """Compile a step by MaxText's own command, and measure the program."""
    from maxtext.trainers.pre_train import train_compile
    from maxtext.utils.globals import MAXTEXT_CONFIGS_DIR

    found = {}

    def compile_step(func, args, kwargs, mesh, in_shardings, out_shardings, static, donated, config, rules):
        options = {"static_argnums": static, "donate_argnums": donated}
        with jax.set_mesh(mesh), rules:
            step = jax.jit(func, in_shardings=in_shardings, out_shardings=out_shardings, **options)
            lowered = step.lower(*args, **kwargs)
        began = time.monotonic()
        program = lowered.compile()
        seconds, memory = time.monotonic() - began, program.memory_analysis()
        sent = collective_bytes(collectives_of(program))
        found.update(
            mesh={axis: size for axis, size in mesh.shape.items() if size > 1},
            parameters=sum(leaf.size for leaf in jax.tree.leaves(args[0]) if leaf.dtype == "float32") // 3,
            arguments_gib_a_chip=memory.argument_size_in_bytes / 2**30,
            temporaries_gib_a_chip=memory.temp_size_in_bytes / 2**30,
            sent_gigabytes_a_chip={kind: count * WIRE.get(kind, 1) / 1e9 for kind, count in sent.items()},
            seconds_to_compile=seconds,
        )
        return program

    train_compile.jit_and_compile = compile_step
    train_compile.main(["train_compile", str(Path(MAXTEXT_CONFIGS_DIR) / "base.yml"), *COMMON, *settings])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=CASES, required=True)
    parser.add_argument("--json")
    options = parser.parse_args()
    kept = json.loads(Path(options.json).read_text())["results"] if options.json and Path(options.json).exists() else []
    row = {"target": options.target, "settings": [*COMMON, *CASES[options.target]], **compiled(CASES[options.target])}
    print(row, flush=True)
    results = {**{each["target"]: each for each in kept}, options.target: row}
    about = "MaxText's training steps of " + " and ".join(sorted(results)) + " beside ours: memory, bytes"
    write(options.json, [*results.values()], compared=("libtpu", "maxtext"), proves=("plan", about))


if __name__ == "__main__":
    main()
