"""Run by test_parted_layers.py with eight CPU devices; prints what layers give there and on one, as JSON."""

import json

import jax
import jax.numpy as jnp
import numpy as np

from flax_transformer.nn.linear import Product, flat_dot_general
from flax_transformer.ops import chunked_cross_entropy, multiply_rows, spread, take_rows
from flax_transformer.parallel import MeshConfig, constrain, make_mesh, tree_shardings

V, D, H, N = 12, 32, 4, 8
MESHES = {
    "data": MeshConfig(data=8),
    "fsdp": MeshConfig(data=1, fsdp=8),
    "data×fsdp×tensor": MeshConfig(data=2, fsdp=2, tensor=2),
    "fsdp×sequence": MeshConfig(data=1, fsdp=2, sequence=4),
}
random = np.random.default_rng(0)
TABLE = random.normal(size=(V, D)).astype(np.float32)
KERNEL = random.normal(size=(D, N, H)).astype(np.float32)


def both(function, mesh, name, parameter, x):
    """Values and gradients of a weighted sum, on the mesh and without one, and where the gradient is."""

    def loss(parameter, x):
        y = function(parameter, x)
        return jnp.sum(y * jnp.arange(y.size).reshape(y.shape) / y.size)

    one = jax.value_and_grad(loss)(parameter, x)
    place = tree_shardings({name: jnp.asarray(parameter)}, mesh)[name]
    with jax.set_mesh(mesh):
        value, slope = jax.jit(jax.value_and_grad(loss))(jax.device_put(parameter, place), x)
    return {
        "value": [float(value), float(one[0])],
        "slope": [np.asarray(slope).tolist(), np.asarray(one[1]).tolist()],
        "places": [str(slope.sharding.spec), str(place.spec)],
    }


def look_up(table, tokens):
    return take_rows(constrain(table, "vocab", "embed"), tokens)


def use_thrice(table, tokens):
    """Look up, multiply and compute a loss with a table that is spread once."""
    table = spread(constrain(table, "vocab", "embed"))
    hidden = jnp.sin(take_rows(table, tokens))
    losses = chunked_cross_entropy(hidden, table, tokens, bias=jnp.arange(V) / V, chunk=3)[0]
    return multiply_rows(table, hidden).at[0, 0].add(losses)


def main():
    numbers = (((2,), (0,)), ((), ()))
    result = {}
    for mesh_name, config in MESHES.items():
        mesh = make_mesh(config)
        for rows in (16, 3):  # three rows cannot be shared out
            tokens = random.integers(0, V, (rows, 8))
            result[f"{mesh_name}, take_rows, {rows}"] = both(look_up, mesh, "token.embedding", TABLE, tokens)
            result[f"{mesh_name}, thrice, {rows}"] = both(use_thrice, mesh, "token.embedding", TABLE, tokens)
            x = random.normal(size=(rows, 8, D)).astype(np.float32)
            multiply = lambda kernel, x: Product("query")(x, kernel, numbers)  # noqa: E731
            result[f"{mesh_name}, Product, {rows}"] = both(multiply, mesh, "query.kernel", KERNEL, x)
    plain = flat_dot_general(x, KERNEL, numbers)
    result["no mesh"] = bool((Product("query")(x, KERNEL, numbers) == plain).all())
    print(json.dumps(result))


if __name__ == "__main__":
    main()
