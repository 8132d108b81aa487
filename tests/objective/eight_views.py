"""Run by test_view_encoder.py with eight CPU devices; prints how far two steps on a mesh are from those of one device:
losses, parameters, and what is carried, with views, masks and orders drawn at random and statistics of groups.
"""

import json
from dataclasses import replace

import jax
import numpy as np
import optax
from flax import nnx

from flax_transformer.models.vision.view_encoder import ProjectorConfig, ViewEncoderConfig
from flax_transformer.models.vision.vit import vit_encoder
from flax_transformer.nn import with_fields
from flax_transformer.objective import BYOL_CHANGES, IBOTLoss, MoCoLoss, SimCLRLoss, Views
from flax_transformer.parallel import MeshConfig, make_mesh
from flax_transformer.train.carry import carry_of
from flax_transformer.train.state import init_state
from flax_transformer.train.step import jit_train_step, make_train_step

VIT = with_fields(vit_encoder("tiny", 4, image=8), embed=16, heads=2, inner=16, depth=1, out_bias=True, mask_token=True)
PROJECTOR = ProjectorConfig(embed=16, outputs=16, hidden=16, groups=2)
MODEL = ViewEncoderConfig(encoder=VIT, projector=PROJECTOR)
PROTOTYPES = replace(MODEL, projector=replace(PROJECTOR, norm="none", groups=1, prototypes=16))
IMAGES = np.random.default_rng(0).uniform(-1, 1, (16, 8, 8, 3)).astype(np.float32)
BATCH = {"inputs": {"images": IMAGES}, "weights": np.ones(16, np.float32)}
KINDS = {
    "SimCLRLoss": (MODEL, SimCLRLoss()),
    "MoCoLoss": (MODEL, MoCoLoss(queue=32)),
    "IBOTLoss": (PROTOTYPES, IBOTLoss(views=Views(changes=BYOL_CHANGES, local=1, local_size=4), mask_share=0.8)),
}


def trained(config, objective, mesh):
    optimizer = optax.sgd(0.1)  # of float32: at 0.3 two steps are 2.6e-5 apart
    carry = carry_of(objective)
    state = init_state(
        lambda key: config.build(nnx.Rngs(key)), optimizer, jax.random.key(0), ema=False, carry=carry, mesh=mesh
    )
    step, losses = jit_train_step(make_train_step(objective, optimizer), state, mesh), []
    for _ in range(2):
        state, metrics = step(state, BATCH)
        losses.append(float(metrics["loss"]))
    return losses, jax.device_get((state.model, state.carried))


def main():
    apart = {}
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    for name, (config, objective) in KINDS.items():
        (one, states), (two, others) = trained(config, objective, None), trained(config, objective, mesh)
        far = jax.tree.map(lambda a, b: float(np.abs(np.subtract(a, b, dtype=np.float64)).max()), states, others)
        apart[name] = {"loss": float(np.abs(np.subtract(one, two)).max()), "state": max(jax.tree.leaves(far))}
    print(json.dumps(apart))


if __name__ == "__main__":
    main()
