# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Sharding: one model, eight devices, no change to the model
#
# A mesh says how many devices lie along each axis; a table says which axis of which parameter is split over which axis
# of the mesh. Models know neither. This notebook lays one decoder out in several ways over eight devices, which are all
# this computer's processor: the layouts and the programs are what eight accelerators would get, the speed is not.
#
# Axes have one letter each: **B** batch, **T** positions, **D** width of the model, **F** feed-forward width, **N**
# heads, **H** width of a head, **V** vocabulary, **L** layers.

# %%
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from flax_transformer.models.causal import Causal, CausalConfig
from flax_transformer.nn import EmbeddingConfig, transformer_block
from flax_transformer.objective import TokenLoss
from flax_transformer.ops import Mask, attention
from flax_transformer.parallel import MeshConfig, logical_axes, make_mesh, path_name, tree_shardings
from flax_transformer.parallel.collectives import collective_bytes, collectives_of
from flax_transformer.train import abstract_state, init_state
from flax_transformer.train.step import jit_train_step, laid_out, make_train_step

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
len(jax.devices())

# %% [markdown]
# ## A table, not code
#
# Every parameter's path matches one line of the table, which names its axes. A parameter that matches none is an error:
# nothing is whole on every device by oversight.

# %%
config = CausalConfig(
    embedding=EmbeddingConfig(vocab=512, embed=64, dropout=0.1),
    block=transformer_block(embed=64, heads=4, inner=256, norm_position="pre", dropout=0.1, attention_dropout=0.1),
    depth=4,
)


def init(key):
    return Causal(config, rngs=nnx.Rngs(key))


model = jax.eval_shape(init, jax.random.key(0))  # shapes alone, no memory
for path, leaf in jax.tree_util.tree_leaves_with_path(model):
    name = path_name(path)
    print(f"{name:36} {leaf.shape!s:18} {logical_axes(name, leaf.ndim)}")

# %% [markdown]
# ## Meshes
#
# The same kernel [L, D, F] of the feed-forward layers under four meshes. The number in a box is the device that holds
# this part. Drawn is D × F, and for the pipeline, which splits the layers, L × D.

# %%
MESHES = {
    "data": MeshConfig(data=8),
    "fsdp": MeshConfig(data=1, fsdp=8),
    "fsdp × tensor": MeshConfig(data=1, fsdp=2, tensor=4),
    "data × pipeline": MeshConfig(data=2, pipeline=4),
}
optimizer = optax.adam(1e-3)
for title, mesh_config in MESHES.items():
    state = init_state(init, optimizer, jax.random.key(0), mesh=make_mesh(mesh_config))
    kernel = state.model.trunk.blocks.feedforward.up.kernel[...]
    print(f"{title}: spec {kernel.sharding.spec}, a device holds {kernel.sharding.shard_shape(kernel.shape)}")
    drawn = slice(0, 2) if mesh_config.pipeline > 1 else slice(1, 3)
    flat = NamedSharding(kernel.sharding.mesh, PartitionSpec(*kernel.sharding.spec[drawn]))
    jax.debug.visualize_array_sharding(jax.device_put(jnp.zeros(kernel.shape[drawn]), flat))

# %% [markdown]
# What a device keeps of parameters and Adam's two averages, by mesh:


# %%
def bytes_a_device(mesh_config):
    mesh = make_mesh(mesh_config)
    places = jax.tree.leaves(tree_shardings(model, mesh))
    parts = zip(jax.tree.leaves(model), places, strict=True)
    return 3 * sum(int(np.prod(place.shard_shape(leaf.shape))) * leaf.dtype.itemsize for leaf, place in parts)


kept = {title: bytes_a_device(mesh_config) / 1e6 for title, mesh_config in MESHES.items()}
figure, axes = plt.subplots(figsize=(5, 2))
axes.barh(list(kept), list(kept.values()), color="#4477aa")
axes.invert_yaxis()
axes.set_xlabel("MB a device")
plt.show()

# %% [markdown]
# ## The same losses
#
# Twenty steps on one device and on each mesh, with dropout. What is drawn depends on the key and the place of a number
# in the whole array, not on the device that draws it, so the losses agree.


# %%
def batches(rows=16, length=32):
    random = np.random.default_rng(0)
    for _ in range(20):
        tokens = random.integers(4, 512, (rows, length + 1), np.int32)
        yield {
            "inputs": {"tokens": tokens[:, :-1]},
            "labels": tokens[:, 1:],
            "weights": np.ones((rows, length), np.float32),
        }


def losses(mesh_config):
    mesh = None if mesh_config is None else make_mesh(mesh_config)
    state = init_state(init, optimizer, jax.random.key(0), mesh=mesh)
    step = jit_train_step(make_train_step(TokenLoss(), optimizer), state, mesh)
    found = []
    for batch in batches():
        state, metrics = step(state, batch)
        found.append(float(metrics["loss"]))
    return np.array(found)


alone = losses(None)
for title, mesh_config in MESHES.items():
    print(f"{title:16} largest relative difference {np.abs(losses(mesh_config) / alone - 1).max():.1e}")

# %% [markdown]
# ## What devices say to each other
#
# The compiled program tells. Data parallelism sums gradients once (all-reduce). Fully sharded, parameters are gathered
# where they are used. A pipeline hands activations on. (On this platform a sum of which each device keeps a part is
# written as an all-reduce; TPUs and GPUs have reduce-scatter for it.)

# %%
batch = next(batches())
for title, mesh_config in MESHES.items():
    mesh = make_mesh(mesh_config)
    state = abstract_state(init, optimizer)
    with jax.set_mesh(mesh):
        compiled = laid_out(make_train_step(TokenLoss(), optimizer), state, mesh).lower(state, batch).compile()
    sent = {kind: f"{size / 1e6:.2f} MB" for kind, size in collective_bytes(collectives_of(compiled)).items() if size}
    print(f"{title:16} {sent}")

# %% [markdown]
# ## Long sequences: attention in a ring
#
# With the axis `sequence`, each device has a part of the positions; keys and values travel round. The result is that of
# one device, and nobody ever holds all keys.

# %%
q, k, v = jax.random.normal(jax.random.key(1), (3, 2, 2048, 4, 32))  # each [B, T, N, H]
mask = Mask(causal=True)
whole = attention(q, k, v, mask)
with jax.set_mesh(make_mesh(MeshConfig(data=1, sequence=8))):
    split = jax.jit(attention, out_shardings=None)(q, k, v, mask)
    print(f"largest difference {jnp.abs(np.asarray(split) - np.asarray(whole)).max():.1e}")
    ring = jax.jit(attention).lower(q, k, v, mask).compile()
print({each.kind for each in collectives_of(ring)})

# %% [markdown]
# ## From here
#
# - `flax-transformer sharding experiments/wmt14.py:base --mesh.fsdp 8 --mesh.data 1` prints such a table for any
#   experiment, with bytes a device, and needs no device.
# - `flax-transformer plan` compiles the training step for a TPU slice that is not here: whether it fits, what bounds
#   it.
# - An experiment runs on a mesh by `--mesh.data`, `--mesh.fsdp`, `--mesh.tensor`, `--mesh.sequence` and
#   `--mesh.pipeline`.
