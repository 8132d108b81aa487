"""Run by test_mesh.py in a process with eight CPU devices, `MODEL MESH…`; prints what it found as JSON."""

import json
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding

from flax_transformer.models.causal import Causal, CausalConfig
from flax_transformer.models.seq2seq import Seq2Seq, Seq2SeqConfig
from flax_transformer.nn import EmbeddingConfig, Rotary, TrunkConfig, transformer_block
from flax_transformer.objective import TokenLoss
from flax_transformer.parallel import MeshConfig, make_mesh, path_name
from flax_transformer.train.optimizer import OptimizerConfig, make_optimizer
from flax_transformer.train.schedule import ScheduleConfig
from flax_transformer.train.state import TrainState, init_state, state_shardings
from flax_transformer.train.step import jit_train_step, make_train_step

STEPS = 20
ROWS, LENGTH, VOCAB = 16, 16, 128
BLOCK = {"embed": 32, "heads": 4, "inner": 64, "dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1}
SEQ2SEQ = Seq2SeqConfig(
    embedding=EmbeddingConfig(vocab=VOCAB, embed=32, dropout=0.1),
    encoder=TrunkConfig(block=transformer_block(**BLOCK), depth=4),
    decoder=TrunkConfig(block=transformer_block(**BLOCK, cross=True), depth=4),
)
CAUSAL = CausalConfig(
    embedding=EmbeddingConfig(vocab=VOCAB, embed=32, dropout=0.1, position="none", scaled=False),
    block=transformer_block(
        **BLOCK, kv_heads=4, gated=True, norm="rms", norm_position="pre", bias=False, activation="silu", rotary=Rotary()
    ),
    depth=4,
    tied_output=False,
    remat="full",
)
MESHES = {
    "data": MeshConfig(data=8),
    "fsdp": MeshConfig(data=1, fsdp=8),
    "tensor": MeshConfig(data=1, tensor=4),
    "sequence": MeshConfig(data=1, sequence=8),
    "pipeline": MeshConfig(data=1, pipeline=4),
    "data×fsdp×tensor": MeshConfig(data=2, fsdp=2, tensor=2),
    "fsdp×sequence": MeshConfig(data=1, fsdp=2, sequence=4),
    "data×pipeline": MeshConfig(data=2, pipeline=4),
}
OPTIMIZERS = ("adam", "adamw", "sgd", "rmsprop", "adafactor", "lion", "muon")


def sentences():
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        length = random.integers(4, LENGTH + 1, ROWS)
        source = random.integers(3, VOCAB, (ROWS, LENGTH), np.int32)
        target = random.integers(3, VOCAB, (ROWS, LENGTH + 1), np.int32)
        yield {
            "inputs": {"source": source, "target": target[:, :-1], "lengths": length.astype(np.int32)},
            "labels": target[:, 1:],
            "weights": (np.arange(LENGTH) < length[::-1, None]).astype(np.float32),
        }


def texts():
    """Rows of several documents each, some tokens without weight."""
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        tokens, labels = random.integers(3, VOCAB, (2, ROWS, LENGTH), np.int32)
        segments = np.sort(random.integers(0, 3, (ROWS, LENGTH), np.int32))
        first = np.array([[np.argmax(row == s) for s in row] for row in segments], np.int32)
        weights = (random.random((ROWS, LENGTH)) < 0.9).astype(np.float32)
        positions = np.arange(LENGTH, dtype=np.int32) - first
        inputs = {"tokens": tokens, "segments": segments, "positions": positions}
        yield {"inputs": inputs, "labels": labels, "weights": weights}


def init(key):
    return Seq2Seq(SEQ2SEQ, rngs=nnx.Rngs(key))


def init_causal(key):
    return Causal(CAUSAL, rngs=nnx.Rngs(key))


RUNS = {
    "seq2seq": {"init": init, "objective": TokenLoss(chunk=512), "batches": sentences},
    "causal": {"init": init_causal, "objective": TokenLoss(chunk=64), "batches": texts, "accumulate": 2},
}


def train(mesh, *, init, objective, batches, accumulate=1):
    optimizer = optax.adam(1e-3)
    state = init_state(init, optimizer, jax.random.key(0), mesh=mesh)
    step = jit_train_step(make_train_step(objective, optimizer, accumulate=accumulate), state, mesh)
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


def compare(run, meshes):
    """Train on one device and on meshes: losses, layouts, and how far parameters end from one device's."""
    losses, layouts, apart = {}, {}, {}
    losses["one device"], state = train(None, **run)
    whole = {path_name(p): np.asarray(leaf) for p, leaf in jax.tree_util.tree_leaves_with_path(state.model)}
    for name in meshes:
        config = MESHES[name]
        mesh = make_mesh(config, jax.devices()[: math.prod(config.sizes())])
        losses[name], state = train(mesh, **run)
        layouts[name] = layout(state)
        apart[name] = max(
            float(np.abs(np.asarray(leaf) - whole[path_name(p)]).max())
            for p, leaf in jax.tree_util.tree_leaves_with_path(state.model)
            if "key.bias" not in path_name(p)  # its gradient is zero but for rounding, which Adam blows up
        )
    return {"losses": losses, "layout": layouts, "parameters": apart}


def main(model, *meshes):
    print(json.dumps({"devices": jax.device_count(), **compare(RUNS[model], meshes)}))


if __name__ == "__main__":
    if sys.argv[1:] == ["optimizers"]:
        print(json.dumps(optimizer_layouts(make_mesh(MESHES["data×fsdp×tensor"]))))
    else:
        main(*sys.argv[1:])
