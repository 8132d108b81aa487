"""Run by test_parted_layers.py with eight CPU devices; prints what layers give there and on one, as JSON."""

import json
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from flax_transformer.nn.linear import Product, flat_dot_general
from flax_transformer.ops import chunked_cross_entropy, multiply_rows, spread, take_rows
from flax_transformer.parallel import MeshConfig, constrain, make_mesh, tree_shardings

V, D, H, N = 12, 32, 4, 8
SHAPES = ((16, 8), (6, 8), (3, 8), (8,), (2, 3, 5), (8, 4))
"""Of tokens: rows that all devices share out, some do, none do; without positions; with an axis more; few for V."""
MESHES = {
    "data": MeshConfig(data=8),
    "fsdp": MeshConfig(data=1, fsdp=8),
    "data×fsdp×tensor": MeshConfig(data=2, fsdp=2, tensor=2),
    "fsdp×sequence": MeshConfig(data=1, fsdp=2, sequence=4),
    "data×pipeline": MeshConfig(data=2, pipeline=4),
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
    """Look up, multiply and compute a loss with a table that is spread once, and a bias that depends on it."""
    table = constrain(table, "vocab", "embed")
    own, bias = spread(table), table[:, 0]
    hidden = jnp.sin(take_rows(own, tokens))
    total, count = chunked_cross_entropy(hidden, own, tokens, tokens % 3, bias=bias, chunk=3)
    return multiply_rows(own, hidden) + total / count


def in_bfloat16(function):
    return lambda table, tokens: function(table.astype(jnp.bfloat16), tokens).astype(jnp.float32)


def main(every):
    """Try every shape on every mesh, or on each mesh the first and one of the others."""
    numbers = (((2,), (0,)), ((), ()))
    result = {}
    for number, (mesh_name, config) in enumerate(MESHES.items()):
        mesh = make_mesh(config)
        compare = partial(both, mesh=mesh, name="token.embedding", parameter=TABLE)
        for at, shape in enumerate(SHAPES):
            tokens = random.integers(0, V, shape)  # the same for a case, whichever others are tried
            if not every and at not in (0, 1 + number % 4, *((5,) if number in (1, 2) else ())):
                continue
            result[f"{mesh_name}, look up, {shape}"] = compare(look_up, x=tokens)
            result[f"{mesh_name}, thrice, {shape}"] = compare(use_thrice, x=tokens)
        for rows in (16, 3):
            tokens, x = random.integers(0, V, (rows, 8)), random.normal(size=(rows, 8, D)).astype(np.float32)
            if not every and rows == 3 and number != 2:
                continue
            result[f"{mesh_name}, bfloat16, {rows}"] = compare(in_bfloat16(use_thrice), x=tokens)
            multiply = lambda kernel, x: Product("query")(x, kernel, numbers)  # noqa: E731
            result[f"{mesh_name}, Product, {rows}"] = both(multiply, mesh, "query.kernel", KERNEL, x)
    with jax.set_mesh(mesh):  # eager
        result["eager"] = bool((take_rows(jnp.asarray(TABLE), tokens) == TABLE[tokens]).all())
    plain = flat_dot_general(x, KERNEL, numbers)
    result["no mesh"] = bool((Product("query")(x, KERNEL, numbers) == plain).all())
    print(json.dumps(result))


if __name__ == "__main__":
    main("every" in sys.argv)
