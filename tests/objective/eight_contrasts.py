"""Run by test_contrast.py with eight CPU devices; prints how far losses and gradients on meshes are from one's."""

import json
from functools import partial

import jax
import numpy as np
from flax import nnx

from flax_transformer.models.multimodal.blip import blip_text, blip_vision
from flax_transformer.models.multimodal.clip import clip_text, clip_vision
from flax_transformer.models.multimodal.grounded import GroundedConfig
from flax_transformer.models.multimodal.retrieval import Retrieval, RetrievalConfig
from flax_transformer.models.multimodal.towers import TwoTowers, TwoTowersConfig
from flax_transformer.objective import ContrastiveLoss, MatchLoss, SigmoidLoss
from flax_transformer.parallel import MeshConfig, batch_sharding, make_mesh, tree_shardings

CONFIG = TwoTowersConfig(
    text=clip_text(8, vocab=20, embed=8, heads=2, depth=1, length=9),
    vision=clip_vision(8, image=8, patch=4, embed=8, heads=2, depth=1),
    bias=-2.0,
)
READER = RetrievalConfig(
    encoder=GroundedConfig(
        vision=blip_vision(image=8, patch=4, embed=8, heads=2, depth=1),
        text=blip_text(8, vocab=20, embed=8, heads=2, depth=1, length=9),
    ),
    width=8,
)
LEARNT = (
    (TwoTowers, CONFIG, ContrastiveLoss(limit=50.0)),
    (TwoTowers, CONFIG, SigmoidLoss()),
    (Retrieval, READER, MatchLoss()),
)
MESHES = {"data×fsdp×tensor": MeshConfig(data=2, fsdp=2, tensor=2)}


def main():
    found = {}
    for kind, config, objective in LEARNT:
        model, batch = kind(config, rngs=nnx.Rngs(0)), kind.example_batch(config, 16, 9)
        batch["weights"] = np.array([1] * 13 + [0] * 3, np.float32)
        learn = jax.jit(jax.value_and_grad(partial(objective, key=jax.random.key(0)), has_aux=True))
        (loss, _), gradients = jax.device_get(learn(model, batch))
        for name, sizes in MESHES.items():
            mesh = make_mesh(sizes)
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
