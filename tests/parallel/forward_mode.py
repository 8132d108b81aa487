"""Run by test_forward_mode.py with eight CPU devices; prints how far derivatives are from one device's, as JSON.

Each kind is tried on every mesh."""

import json

import eight_devices
import jax
import jax.numpy as jnp
import numpy as np

from flax_transformer.nn import Block, apply_stack, init_stack, transformer_block
from flax_transformer.ops import Mask
from flax_transformer.parallel import batch_sharding, make_mesh, tree_shardings

CFG = transformer_block(embed=32, heads=4, kv_heads=4, inner=64)
MESHES = ("fsdp", "data×fsdp×tensor", "fsdp×sequence", "sequence", "data×pipeline")


def loss(stack, x):
    return (apply_stack(stack, x, mask=Mask(causal=True), remat="dots") ** 3).mean()


KINDS = {
    "forward": lambda *given: jax.jvp(loss, given, jax.tree.map(jnp.cos, given)),
    "forward by the input": lambda stack, x: jax.jvp(lambda x: loss(stack, x), (x,), (x**2,)),
    "forward over backward": lambda stack, x: jax.jvp(jax.grad(lambda x: loss(stack, x)), (x,), (jnp.cos(x),)),
    "linearized": lambda *given: jax.linearize(loss, *given)[1](*given),
    "many": lambda stack, x: jax.jvp(
        jax.vmap(lambda s: loss(stack, s * x)), (jnp.array([1.0, 2.0]),), (jnp.array([1.0, 3.0]),)
    ),
}


def error(ours, theirs):
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def main():
    stack = init_stack(lambda rngs: Block(CFG, rngs=rngs), 4, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (8, 16, 32))
    found = {}
    for kind, derive in KINDS.items():
        expected = jax.device_get(jax.jit(derive)(stack, x))
        for name in MESHES:
            mesh = make_mesh(eight_devices.MESHES[name])
            given = jax.device_put((stack, x), (tree_shardings(stack, mesh), batch_sharding(mesh)))
            with jax.set_mesh(mesh):
                found[f"{kind}, {name}"] = error(jax.device_get(jax.jit(derive)(*given)), expected)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
