"""Run by test_axis.py with eight CPU devices; prints what programs cost under meshes of several names, as JSON."""

import json
import sys
from functools import partial

import eight_devices
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from flax_transformer.nn import Block, apply_stack, init_stack, transformer_block
from flax_transformer.objective import TokenLoss
from flax_transformer.parallel import axis_rules, batch_sharding, tree_shardings
from flax_transformer.parallel.collectives import collectives_of
from flax_transformer.train.state import init_state
from flax_transformer.train.step import jit_train_step, laid_out, make_train_step

BLOCK = transformer_block(embed=32, heads=4, inner=64, norm_position="pre")
EXPERTS = transformer_block(embed=32, heads=4, inner=64, norm_position="pre", experts=4, capacity=1.0)
ROWS, LENGTH = 16, 16
RENAMED = {
    "data": "dp", "fsdp": "shard", "tensor": "model", "sequence": "context", "pipeline": "stage",
    "expert": "group",
}  # fmt: skip
RULE = {
    "batch": ("dp", "shard", "group"), "length": "context", "layers": "stage", "embed": "shard", "heads": "model",
    "kv_heads": "model", "inner": "model", "experts": "group", "vocab": "model",
}  # fmt: skip
MESHES = (
    {"data": 8},
    {"data": 2, "fsdp": 2, "tensor": 2},
    {"fsdp": 4, "sequence": 2},
    {"data": 2, "pipeline": 4},
    {"data": 2, "expert": 4},
)


def make_mesh(sizes, rename=False):
    names = tuple(RENAMED[name] if rename else name for name in sizes)
    return jax.make_mesh(tuple(sizes.values()), names, axis_types=(AxisType.Auto,) * len(sizes))


def cost(compiled):
    found = [(each.kind, each.bytes, each.times) for each in collectives_of(compiled)]
    memory = compiled.memory_analysis()
    sizes = {name: getattr(memory, f"{name}_size_in_bytes") for name in ("argument", "output", "temp")}
    return {"flops": compiled.cost_analysis()["flops"], "memory": sizes, "collectives": sorted(found)}


def programs(mesh, places=None, *, train=True):
    """Compile a block, a stack of four and a training step; by the sharding table unless `places` lays out all."""
    table = tree_shardings if places is None else lambda tree, _: jax.tree.map(lambda _: places[0], tree)
    rows = batch_sharding(mesh) if places is None else places[1]
    given = lambda tree, place: jax.tree.map(  # noqa: E731
        lambda leaf, s: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=s), tree, place
    )
    kind = EXPERTS if "expert" in mesh.axis_names or "group" in mesh.axis_names else BLOCK
    block = jax.eval_shape(lambda: Block(kind, rngs=nnx.Rngs(0)))
    stack = jax.eval_shape(lambda: init_stack(lambda r: Block(kind, rngs=r), 4, key=jax.random.key(0)))
    x = jax.ShapeDtypeStruct((ROWS, LENGTH, 32), jnp.float32, sharding=rows)
    found = {}
    with jax.set_mesh(mesh):
        for name, tree, call in (("block", block, lambda b, x: b(x)), ("stack", stack, apply_stack)):
            found[name] = cost(jax.jit(call).lower(given(tree, table(tree, mesh)), x).compile())
        if not train:
            return found
        optimizer = optax.adam(1e-3)
        state = jax.eval_shape(lambda: init_state(eight_devices.init_causal, optimizer, jax.random.key(0)))
        step = make_train_step(TokenLoss(chunk=512), optimizer)
        batch = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, next(eight_devices.texts())))
        if places is None:
            step = laid_out(step, state, mesh)
        else:
            state, whole = given(state, table(state, mesh)), jax.tree.map(lambda _: places[0], state)
            step = jax.jit(step, out_shardings=(whole, None), donate_argnums=0)
        found["train step"] = cost(step.lower(state, given(batch, jax.tree.map(lambda _: rows, batch))).compile())
    return found


def costs(*, train):
    """For each mesh: ours, and renamed under a rule; with one axis, renamed and nothing said."""
    found = {}
    for sizes in MESHES if train else MESHES[:1]:
        name = " × ".join(sizes)
        found[name] = programs(make_mesh(sizes), train=train)
        with axis_rules(RULE):
            found[f"{name}, renamed"] = programs(make_mesh(sizes, rename=True), train=train)
    mesh = make_mesh({"data": 8}, rename=True)
    places = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("dp"))
    found["data, nothing said"] = programs(mesh, places, train=train)
    return found


def results():
    """Losses of three steps on meshes of odd names and shapes, and on one device."""
    optimizer, found = optax.adam(1e-3), {}
    devices = np.array(jax.devices())
    auto = lambda *shape_names: Mesh(  # noqa: E731
        devices[: np.prod(shape_names[0])].reshape(shape_names[0]), shape_names[1],
        axis_types=(AxisType.Auto,) * len(shape_names[1]),
    )  # fmt: skip
    cases = {
        "one device": (None, {}),
        "a length over two axes": (auto((2, 2, 2), ("dp", "a", "b")), {"batch": "dp", "length": ("a", "b")}),
        "rows over two axes, and the width too": (auto((2, 2), ("x", "y")), {"batch": ("x", "y"), "embed": ("x", "y")}),
        "half of the devices": (auto((4, 1), ("replica", "model")), {"batch": "replica", "inner": "model"}),
        "layers over two axes": (auto((2, 2, 2), ("p", "q", "dp")), {"batch": "dp", "layers": ("p", "q")}),
        "width apart from rows": (auto((4, 2), ("dp", "w")), {"batch": "dp", "embed": "w"}),
    }
    for name, (mesh, rule) in cases.items():
        with axis_rules(rule):
            state = init_state(eight_devices.init_causal, optimizer, jax.random.key(0), mesh=mesh)
            objective = TokenLoss(chunk=64)
            step = jit_train_step(make_train_step(objective, optimizer), state, mesh)
        losses = []  # the rule is kept, as the mesh is
        for batch, _ in zip(eight_devices.texts(), range(3), strict=False):
            state, metrics = step(state, batch)
            losses.append(float(metrics["loss"]))
        found[name] = losses
    return found


if __name__ == "__main__":
    runs = {"blocks": partial(costs, train=False), "steps": partial(costs, train=True), "results": results}
    print(json.dumps(runs[sys.argv[1]]()))
