"""Run by test_contrast.py with eight CPU devices; prints how far losses and gradients on meshes are from one's."""

import json

import jax
import numpy as np
from flax import nnx

from flax_transformer.models.multimodal.clip import clip_text, clip_vision
from flax_transformer.models.multimodal.towers import TwoTowers, TwoTowersConfig
from flax_transformer.objective import ContrastiveLoss, SigmoidLoss
from flax_transformer.parallel import MeshConfig, batch_sharding, make_mesh, tree_shardings

CONFIG = TwoTowersConfig(
    text=clip_text(8, vocab=20, embed=8, heads=2, depth=1, length=9),
    vision=clip_vision(8, image=8, patch=4, embed=8, heads=2, depth=1),
    bias=-2.0,
)
MESHES = {"data×fsdp×tensor": MeshConfig(data=2, fsdp=2, tensor=2)}


def main():
    model, batch = TwoTowers(CONFIG, rngs=nnx.Rngs(0)), TwoTowers.example_batch(CONFIG, 16)
    batch["weights"] = np.array([1] * 13 + [0] * 3, np.float32)
    found = {}
    for objective in (ContrastiveLoss(limit=50.0), SigmoidLoss()):
        learn = jax.jit(jax.value_and_grad(objective, has_aux=True))
        (loss, _), gradients = jax.device_get(learn(model, batch))
        for name, config in MESHES.items():
            mesh = make_mesh(config)
            with jax.set_mesh(mesh):
                parted = jax.device_put(model, tree_shardings(model, mesh))
                (other, _), moved = jax.device_get(learn(parted, jax.device_put(batch, batch_sharding(mesh))))
            apart = jax.tree.leaves(jax.tree.map(lambda x, y: float(np.abs(x - y).max()), gradients, moved))
            largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(gradients))
            found[f"{type(objective).__name__} {name}"] = {
                "loss": float(abs(loss - other) / abs(loss)), "gradients": max(apart) / largest,
            }  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main()
