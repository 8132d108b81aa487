"""Training steps of large decoders on TPUs that are not here, by `plan`: Gemma 3 27B and Qwen3 30B-A3B, this one with a
capacity of its experts and without.

    python benchmarks/decoder_plan.py [--targets gemma3_27b …] [--json FILE]

The compiler is in `libtpu`. A row has the bytes that a chip keeps, what it sends in a step and the bounds of a step.
What is in the file already stays there, so that rows can be made one at a time.
"""

import argparse
import json
from pathlib import Path

from results import write

from flax_transformer.bench.compile_ahead import Case
from flax_transformer.bench.plan import plan
from flax_transformer.parallel import AXES, MeshConfig

SIZE = {"length": 4096, "dtype": "bfloat16", "remat": "full"}
CASES = (
    Case(target="gemma3_27b", topology="v5p:4x4x4", mesh=MeshConfig(data=4, fsdp=16), size={**SIZE, "batch": 64}),
    *(
        Case(
            target="qwen3_30b_a3b", topology="v5p:4x4x4", mesh=MeshConfig(data=1, fsdp=16, expert=4),
            size={**SIZE, "batch": 64, **capacity},
        )
        for capacity in ({"capacity": 1.25}, {})
    ),
)  # fmt: skip


def planned(case: Case) -> dict:
    found = plan(case)
    known, sizes = found.compiled, {axis: getattr(case.mesh, axis) for axis in AXES}
    return {
        "target": case.target,
        "topology": case.topology,
        "mesh": {axis: size for axis, size in sizes.items() if size != 1},
        "size": dict(case.size),
        "parameters": known.parameters,
        **{
            f"{name}_gib_a_chip": getattr(known, name) / 2**30 for name in ("arguments", "temporaries", "used", "limit")
        },
        "fits": known.fits,
        "sent_gigabytes_a_chip": {kind: count / 1e9 for kind, count in found.wire.items()},
        "needed_gigabytes_a_chip": {axis: count / 1e9 for axis, count in known.minimum.items()},
        "milliseconds_at_least": {name: 1e3 * getattr(found.bounds, name) for name in ("compute", "memory", "links")},
        "bound_by": found.bounds.by,
        "attention": dict(known.attention),
        "seconds_to_compile": known.seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", default=[case.target for case in CASES])
    parser.add_argument("--json")
    options = parser.parse_args()
    kept = json.loads(Path(options.json).read_text())["results"] if options.json and Path(options.json).exists() else []
    results = {(each["target"], each["size"].get("capacity")): each for each in kept}
    for case in CASES:
        if case.target in options.targets:
            made = results[case.target, case.size.get("capacity")] = planned(case)
            print(made, flush=True)
    targets = " and ".join(sorted({target for target, _ in results}))
    about = f"training steps of {targets} on v5p: memory, bytes, bounds"
    write(options.json, [*results.values()], compared=("libtpu",), proves=("plan", about))


if __name__ == "__main__":
    main()
