"""A module of a user's own, with parameters no table knows; as a script, trained on eight devices beside one."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from flax_transformer.nn.stack import apply_stack, init_stack
from flax_transformer.parallel import MeshConfig, constrain, make_mesh, path_name, sharding_rules, with_axes
from flax_transformer.train.state import init_state
from flax_transformer.train.step import jit_train_step, make_train_step

ROWS, LENGTH, WIDTH, DEPTH = 16, 8, 16, 4
RULES = {r"(^|\.)channels$": ("embed", "inner")}


class Mixer(nnx.Module):
    """Tokens mixed, then channels, each scaled by a vector of its own (Tolstikhin et al. 2021; Touvron et al. 2021)."""

    def __init__(self, *, rngs):
        draw = nnx.initializers.lecun_normal()
        said = {"out_sharding": ("length", None), "eager_sharding": False}
        self.tokens = nnx.Param(draw(rngs.params(), (LENGTH, LENGTH)), **said)
        self.channels = nnx.Param(draw(rngs.params(), (WIDTH, WIDTH)))
        self.gamma = nnx.Param(jnp.full(WIDTH, 0.5))
        self.temperature = nnx.Param(jnp.ones(()))

    def __call__(self, x, *, key=None):
        x = x + self.gamma[...] * jnp.einsum("btd,ts->bsd", x, self.tokens[...])
        mixed = jnp.tanh(self.temperature[...] * (x @ self.channels[...]))
        return constrain(x + self.gamma[...] * mixed, "batch", "length", None)


def init(key):
    """A stack of mixers whose channels nobody has said the axes of."""
    return {"blocks": init_stack(lambda rngs: Mixer(rngs=rngs), DEPTH, key=key)}


def told(key):
    """The same, told at the model."""
    return with_axes(init(key), RULES)


def objective(model, batch, *, key):
    error = jnp.sum((apply_stack(model["blocks"], batch["x"]) - batch["y"]) ** 2)
    return error, {"count": jnp.float32(len(batch["x"]))}


def train(init, mesh):
    optimizer, random, losses = optax.adam(1e-2), np.random.default_rng(0), []
    state = init_state(init, optimizer, jax.random.key(0), ema=True, mesh=mesh)
    step = jit_train_step(make_train_step(objective, optimizer, accumulate=2, ema=0.9), state, mesh)
    for _ in range(10):
        x, y = random.normal(size=(2, ROWS, LENGTH, WIDTH)).astype(np.float32)
        state, metrics = step(state, {"x": x, "y": y})
        losses.append(float(metrics["loss"]))
    return losses, state


MESHES = {
    "data×fsdp×tensor": MeshConfig(data=2, fsdp=2, tensor=2),
    "fsdp×sequence": MeshConfig(data=1, fsdp=4, sequence=2),
    "data×pipeline": MeshConfig(data=2, pipeline=4),
}


def main():
    losses, alone = train(init, None)
    found = {"alone": losses}
    for name, config in MESHES.items():
        mesh = make_mesh(config)
        there, state = train(told, mesh)
        with sharding_rules(RULES):
            by_rules, other = train(init, mesh)
        far = max(
            float(np.abs(np.asarray(a) - np.asarray(b)).max())
            for a, b in zip(jax.tree.leaves(state.model), jax.tree.leaves(alone.model), strict=True)
        )
        layout = {
            path_name(path): list(leaf.sharding.spec) for path, leaf in jax.tree_util.tree_leaves_with_path(state)
        }
        same = all(
            a.sharding == b.sharding for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True)
        )
        found[name] = {"told": there, "by rules": by_rules, "apart": far, "layout": layout, "same layout": same}
    print(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
