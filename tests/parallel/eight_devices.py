"""Run by test_mesh.py in a process with eight CPU devices; prints what it found as JSON."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding

from flax_transformer.models.seq2seq import Seq2Seq, Seq2SeqConfig
from flax_transformer.nn import BlockConfig, EmbeddingConfig
from flax_transformer.parallel import MeshConfig, make_mesh, path_name
from flax_transformer.task.translation import translation_loss
from flax_transformer.train.optimizer import OptimizerConfig, make_optimizer
from flax_transformer.train.schedule import ScheduleConfig
from flax_transformer.train.state import TrainState, init_state, state_shardings
from flax_transformer.train.step import jit_train_step, make_train_step

STEPS = 10
BLOCK = {"embed": 32, "heads": 4, "hidden": 64, "dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1}
MODEL = Seq2SeqConfig(
    embedding=EmbeddingConfig(vocab=128, embed=32, dropout=0.1),
    encoder=BlockConfig(**BLOCK),
    decoder=BlockConfig(**BLOCK, cross=True),
    encoder_depth=2,
    decoder_depth=2,
)
MESHES = {
    "data": MeshConfig(data=8),
    "fsdp": MeshConfig(data=1, fsdp=8),
    "tensor": MeshConfig(data=1, tensor=4),
    "all": MeshConfig(data=2, fsdp=2, tensor=2),
}
OPTIMIZERS = ("adam", "adamw", "sgd", "rmsprop", "adafactor", "lion", "muon")


def batches():
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        length = random.integers(4, 13, 16)
        yield {
            "source": random.integers(3, 128, (16, 12), np.int32),
            "source_length": length.astype(np.int32),
            "target": random.integers(3, 128, (16, 13), np.int32),
            "target_length": length[::-1].astype(np.int32),
        }


def init(key):
    return Seq2Seq(MODEL, rngs=nnx.Rngs(key))


def train(mesh):
    optimizer = optax.adam(1e-3)
    state = init_state(init, optimizer, jax.random.key(0), mesh=mesh)
    step = jit_train_step(make_train_step(translation_loss, optimizer), state, mesh)
    losses = []
    for batch in batches():
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    return losses, state


def layout(state):
    """Spec, and the share of each parameter, moment and average that lies on the first device."""
    shares = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if jnp.ndim(leaf) > 0:
            local = math.prod(leaf.sharding.shard_shape(leaf.shape))
            shares[path_name(path)] = (str(leaf.sharding.spec), local / leaf.size)
    return shares


def optimizer_layouts(mesh):
    """For each optimizer: leaves without a layout, and statistics of a parameter's shape not laid out as it is."""
    found, model = {}, jax.eval_shape(init, jax.random.key(0))
    for name in OPTIMIZERS:
        config = OptimizerConfig(name=name, schedule=ScheduleConfig(name="constant"), momentum=0.9)
        optimizer = make_optimizer(config, 10)
        make = lambda m, o=optimizer: TrainState(m, o.init(m), jnp.zeros((), jnp.int32), jax.random.key(0), ema=m)  # noqa: E731
        state = jax.eval_shape(make, model)
        places = state_shardings(state, mesh)
        assert jax.tree.structure(places) == jax.tree.structure(state)
        parameters = {path_name(p): leaf.shape for p, leaf in jax.tree_util.tree_leaves_with_path(model)}
        placed = {path_name(p): s for p, s in jax.tree_util.tree_leaves_with_path(places)}
        wrong, matched = [], 0
        for path, leaf in jax.tree_util.tree_leaves_with_path(state.opt_state):
            spelled = "opt_state." + path_name(path)
            own = [p for p, shape in parameters.items() if spelled.endswith("." + p) and shape == leaf.shape]
            if not isinstance(placed[spelled], NamedSharding):
                wrong.append(spelled)
            elif own:
                matched += 1
                longest = max(own, key=len)
                if placed[spelled].spec != placed["model." + longest].spec:
                    wrong.append(spelled)
        found[name] = {"wrong": wrong, "matched": matched}
    return found


def main():
    devices = jax.devices()
    result = {"devices": len(devices), "losses": {}, "layout": {}, "parameters": {}}
    reference, state = train(None)
    result["losses"]["one device"] = reference
    whole = {path_name(p): leaf for p, leaf in jax.tree_util.tree_leaves_with_path(state.model)}
    for name, config in MESHES.items():
        size = math.prod(config.sizes())
        losses, state = train(make_mesh(config, devices[:size]))
        result["losses"][name] = losses
        result["layout"][name] = layout(state)
        result["parameters"][name] = max(
            float(jnp.abs(np.asarray(leaf) - np.asarray(whole[path_name(p)])).max())
            for p, leaf in jax.tree_util.tree_leaves_with_path(state.model)
            if "key.bias" not in path_name(p)  # its gradient is zero but for rounding, which Adam blows up
        )
    result["optimizers"] = optimizer_layouts(make_mesh(MESHES["all"], devices))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
