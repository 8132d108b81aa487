"""Llama 2 7B with kernels of few bits, a decoding step of 8 rows on TPUs and a GPU that are not here, by `plan`.

    python benchmarks/few_bits_plan.py [--topologies v5e:2x2 h100:1] [--json FILE]

The compilers are in `libtpu` and `jax-cuda12-plugin`. A row has the bytes of weights, cache and temporaries of a chip,
what all chips read for a token, the bound of a step, and how many products in the compiled program are of which
numbers; the layers are one loop, so each product counts once.
"""

import argparse

from results import write

from flax_transformer.bench.compile_ahead import Case
from flax_transformer.bench.plan import plan
from flax_transformer.parallel import MeshConfig

SIZE = {"batch": 8, "length": 256, "dtype": "bfloat16", "params": "bfloat16"}
RULES = {
    "bfloat16": {},
    "int8": {"weights": "int8"},
    "int8, inputs int8": {"weights": "int8", "activations": "int8"},
    "int8, inputs int8, cache int8": {"weights": "int8", "activations": "int8", "cache": "int8"},
    "float8, inputs float8": {"weights": "float8_e4m3fn", "activations": "float8_e4m3fn"},
    "int4 in groups of 128": {"weights": "int4", "group": 128},
    "int4 in groups of 64": {"weights": "int4", "group": 64},
}


def planned(topology: str, rule: dict) -> dict:
    tensor = MeshConfig(data=1, tensor=-1)
    case = Case(target="llama2_7b", topology=topology, mesh=tensor, size={**SIZE, **rule}, what="decode")
    found = plan(case, fresh=True)
    known = found.compiled
    return {
        **{f"{name}_gib_a_chip": getattr(known, name) / 2**30 for name in ("weights", "cache", "temporaries")},
        "megabytes_read_a_token": found.read_each / 1e6,
        "milliseconds_at_least": 1e3 * found.bounds.step,
        "arithmetic_milliseconds": 1e3 * found.bounds.compute,
        "bound_by": found.bounds.by,
        "sent_gigabytes_a_chip": sum(found.wire.values()) / 1e9,
        "products": {each["kind"]: each["count"] for each in known.products},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topologies", nargs="+", default=["v5e:2x2", "h100:1"])
    parser.add_argument("--json")
    options = parser.parse_args()
    results = []
    for topology in options.topologies:
        for name, rule in RULES.items():
            results.append({"topology": topology, "rule": name, **planned(topology, rule)})
            print(results[-1], flush=True)
    about = "bytes, bounds and products of Llama 2 7B in few bits on v5e:2x2 and h100:1"
    write(options.json, results, compared=("libtpu", "jax-cuda12-plugin"), proves=("plan", about))


if __name__ == "__main__":
    main()
