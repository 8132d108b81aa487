"""Run by test_adapter_choice.py on eight CPU devices: rows of adapters on meshes, as on one device; prints JSON."""

import json
import sys

import jax
import numpy as np

from flax_transformer import hub
from flax_transformer.parallel import MeshConfig, make_mesh, tree_shardings

NAMES = ["one", None, "two", "two", "one", None, "one", "two"]
MESHES = {
    "data": MeshConfig(data=8),
    "data, fsdp and tensor": MeshConfig(data=2, fsdp=2, tensor=2),
    "data and sequence": MeshConfig(data=4, sequence=2),
}


def main():
    folder, ids = sys.argv[1], np.arange(64).reshape(8, 8) % 40
    adapters = {name: f"{folder}/{name}" for name in ("one", "two")}
    alone = hub.load(f"{folder}/base", adapters=adapters)
    expected = np.asarray(alone.choose(NAMES)(input_ids=ids).logits)
    result = {}
    for name, config in MESHES.items():
        mesh = make_mesh(config, jax.devices())
        held = hub.load(f"{folder}/base", mesh=mesh, adapters=adapters)
        placed = jax.device_put(held, tree_shardings(held, mesh))
        with jax.set_mesh(mesh):
            found = [np.asarray(each.choose(NAMES)(input_ids=ids).logits) for each in (held, placed)]
            one = np.asarray(held.choose("two")(input_ids=ids).logits)
        errors = [float(np.abs(each - expected).max() / np.abs(expected).max()) for each in found]
        rows = [row for row, each in enumerate(NAMES) if each == "two"]
        errors.append(float(np.abs(one[rows] - expected[rows]).max() / np.abs(expected).max()))
        result[name] = errors
    pipeline = make_mesh(MeshConfig(data=4, pipeline=2), jax.devices())
    held = hub.load(f"{folder}/base", mesh=pipeline, adapters=adapters)
    with jax.set_mesh(pipeline):
        one = np.asarray(held.choose("two")(input_ids=ids).logits)
        try:
            held.choose(NAMES)(input_ids=ids)
        except ValueError as error:
            result["refused"] = str(error)
    result["pipeline"] = [float(np.abs(one[rows] - expected[rows]).max() / np.abs(expected).max())]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
