"""Run by test_expert_devices.py with eight CPU devices; prints results on meshes and what they send, as JSON."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from flax_transformer.models.causal import Causal, CausalConfig
from flax_transformer.nn import EmbeddingConfig, init_stack, observe_stack, transformer_block
from flax_transformer.objective import RouterLoss, TokenLoss
from flax_transformer.parallel import MeshConfig, batch_sharding, make_mesh, tree_shardings
from flax_transformer.parallel.collectives import collectives_of
from flax_transformer.train.state import init_state
from flax_transformer.train.step import jit_train_step, make_train_step

CAPACITY = None if sys.argv[-1] == "dropless" else 1.0
BLOCK = transformer_block(
    embed=32, heads=4, inner=64, experts=8, capacity=CAPACITY, norm_position="pre", gated=True, init_std=0.2,
    jitter=0.1, activation_dropout=0.1, bias=False,
)  # fmt: skip
MODEL = CausalConfig(embedding=EmbeddingConfig(vocab=40, embed=32, max_length=16), block=BLOCK, depth=2)
MESHES = {
    "expert": MeshConfig(data=1, expert=8),
    "data×expert": MeshConfig(data=2, expert=4),
    "fsdp×expert×tensor": MeshConfig(data=1, fsdp=2, expert=2, tensor=2),
}


def told(stack, x):
    y, beside = observe_stack(stack, x)
    return (y**2).mean() + beside["balance"].mean() + beside["router_z"].mean(), beside["dropped"]


def layers():
    """Value and gradient of a stack on each mesh and on one device: the largest difference, and what is sent."""
    stack = init_stack(BLOCK.build, 2, key=jax.random.key(0))
    x, run, found = jax.random.normal(jax.random.key(1), (16, 16, 32)), jax.value_and_grad(told, has_aux=True), {}
    alone = jax.jit(run)(stack, x)
    for name, config in MESHES.items():
        mesh = make_mesh(config)
        with jax.set_mesh(mesh):
            placed = jax.device_put(stack, tree_shardings(stack, mesh))
            rows = jax.device_put(x, batch_sharding(mesh))
            forward = jax.jit(lambda stack, x: observe_stack(stack, x)[0])
            sent = [
                (each.kind, each.bytes, each.times) for each in collectives_of(forward.lower(placed, rows).compile())
            ]
            ours = jax.jit(run)(placed, rows)
        apart = jax.tree.map(lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max()), ours, alone)
        kernel = placed.feedforward.experts.up.kernel[...]
        share = kernel.addressable_shards[0].data.size / kernel.size
        found[name] = {"apart": max(jax.tree.leaves(apart)), "sent": sent, "share": share}
    found["dropped"] = float(alone[0][1].mean())
    return found


def steps():
    """Losses of three steps of training on each mesh, and on one device."""
    random, found = np.random.default_rng(0), {}
    tokens = random.integers(0, 40, (16, 17))
    batch = {"inputs": {"tokens": tokens[:, :-1]}, "labels": tokens[:, 1:], "weights": np.ones((16, 16), np.float32)}
    objective, optimizer = RouterLoss(of=TokenLoss(), balance=0.1), optax.adam(1e-2)
    for name, config in {"one device": None, **MESHES}.items():
        mesh = None if config is None else make_mesh(config)
        state = init_state(lambda key: Causal(MODEL, rngs=nnx.Rngs(key)), optimizer, jax.random.key(0), mesh=mesh)
        step = jit_train_step(make_train_step(objective, optimizer, accumulate=2), state, mesh)
        found[name] = []
        for _ in range(3):
            state, metrics = step(state, jax.tree.map(jnp.asarray, batch))
            found[name].append([float(metrics[each]) for each in ("loss", "balance", "dropped")])
    return found


if __name__ == "__main__":
    print(json.dumps({"layers": layers, "steps": steps}[sys.argv[1]]()))
