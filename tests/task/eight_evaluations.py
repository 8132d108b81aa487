"""Run by test_evaluation.py with eight CPU devices; prints what evaluation measures on each mesh, as JSON."""

import json
import sys
from pathlib import Path

import jax
import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "parallel"))
import eight_devices
from flax import nnx
from test_detections import RECIPE

from flax_transformer.objective import TokenLoss
from flax_transformer.parallel import MeshConfig, make_mesh, tree_shardings
from flax_transformer.task.detection import _found
from flax_transformer.task.evaluator import _sums, evaluate
from flax_transformer.task.opened import Context
from flax_transformer.task.spec import sized
from flax_transformer.train.batch_layout import fill_rows
from flax_transformer.train.folder import RunFolder

MESHES = {
    "data": MeshConfig(data=8),
    "data×fsdp×tensor": MeshConfig(data=2, fsdp=2, tensor=2),
    "fsdp": MeshConfig(data=1, fsdp=8),
    "data×pipeline": MeshConfig(data=2, pipeline=4),
}


def boxes():
    """Return where a detector finds objects, on one device and on meshes that its three images do not fit."""
    opened = RECIPE.examples.open(RECIPE.data, Context(folder=RunFolder(Path())))
    config = sized(RECIPE.model, opened.spec)
    model = jax.jit(lambda: config.build(nnx.Rngs(0)))()
    find = lambda model: [each["boxes"].tolist() for batch in opened.validation() for each in _found(model, batch)]  # noqa: E731
    yield "one", find(model)
    for name in ("data", "data×fsdp×tensor"):
        mesh = make_mesh(MESHES[name])
        with jax.set_mesh(mesh):
            parted = jax.device_put(model, tree_shardings(model, mesh))
            yield name, find(parted)


def main():
    model = jax.jit(eight_devices.init_causal)(jax.random.key(0))
    batches = list(eight_devices.texts())[:2]
    batches.append(jax.tree.map(lambda leaf: leaf[:5], batches[0]))  # eight devices cannot share five rows
    wanted = evaluate(TokenLoss(), model, batches)
    result = {"one": wanted}
    alone = _sums.lower(TokenLoss(), model, batches[0]).compile().cost_analysis()["flops"]
    for name, config in MESHES.items():
        mesh = make_mesh(config)
        parted = jax.device_put(model, tree_shardings(model, mesh))
        with jax.set_mesh(mesh):
            found = evaluate(TokenLoss(), parted, batches)
            flops = _sums.lower(TokenLoss(), parted, fill_rows(batches[0])).compile().cost_analysis()["flops"]
            rows = [len(fill_rows(batch)["labels"]) for batch in batches]
        result[name] = {**found, "share": float(flops / alone), "rows": rows}
    result["boxes"] = dict(boxes())
    print(json.dumps(jax.tree.map(lambda x: x.item() if isinstance(x, np.generic) else x, result)))


if __name__ == "__main__":
    main()
