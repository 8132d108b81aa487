"""Run by test_load_mesh.py on eight CPU devices: loads the folder given and prints what it found as JSON."""

import json
import sys

import jax
import numpy as np

from flax_transformer import hub
from flax_transformer.hub import weights
from flax_transformer.parallel import MeshConfig, make_mesh, path_name, tree_shardings


def look(alone, mesh, folder, ids):
    spread = hub.load(folder, mesh=mesh)
    expected = dict(leaves(tree_shardings(spread.model, mesh)))
    values = dict(leaves(alone.model))
    found = dict(leaves(spread.model))
    with jax.set_mesh(mesh):
        logits = np.asarray(spread(input_ids=ids).logits)
    reference = np.asarray(alone(input_ids=ids).logits)
    return {
        "misplaced": [path for path, leaf in found.items() if leaf.sharding != expected[path]],
        "different": [path for path, leaf in found.items() if not np.array_equal(leaf, values[path])],
        "split": sum(not leaf.sharding.is_fully_replicated for leaf in found.values()),
        "error": float(np.abs(logits - reference).max() / np.abs(reference).max()),
    }


def leaves(tree):
    return [(path_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def main():
    folder, ids = sys.argv[1], np.arange(20).reshape(4, 5)
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), jax.devices())
    alone = hub.load(folder)
    result = {"devices": len(jax.devices()), "gathered": look(alone, mesh, folder, ids)}
    weights.PIECE = 0
    print(json.dumps({**result, "layer by layer": look(alone, mesh, folder, ids)}))


if __name__ == "__main__":
    main()
