"""Run by test_collectives.py with eight CPU devices; prints small compiled programs by name, as JSON."""

import json
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

gather = partial(jax.lax.all_gather, axis_name="x", tiled=True)
add = partial(jax.lax.psum, axis_name="x")
turn = partial(jax.lax.ppermute, axis_name="x", perm=[(i, (i + 1) % 8) for i in range(8)])


def again(step, count):
    return lambda x: jax.lax.scan(lambda carry, _: (step(carry), None), x, None, length=count)[0]


PROGRAMS = {
    "psum": add,
    "all_gather": lambda x: gather(x)[:8] * 2,
    "psum_scatter": lambda x: jax.lax.psum_scatter(x, "x", tiled=True),
    "ppermute": turn,
    "all_to_all": lambda x: jax.lax.all_to_all(x, "x", 0, 0, tiled=True),
    "two arrays": lambda x: sum(y.sum() for y in add((x, x[:4] ** 2)))[None],
    "scan": again(lambda x: add(x) / 8, 5),
    "nested scan": again(lambda x: turn(again(lambda y: gather(jnp.sin(y))[3:11], 4)(x)), 3),
    "while": lambda x: jax.lax.while_loop(lambda y: y.sum() < 9, lambda y: add(y), x),
    "cond": lambda x: jax.lax.cond(x[0, 0] > 0, add, lambda y: y, x),
    "nothing": lambda x: 2 * x,
}


def main():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    spec, x = PartitionSpec("x"), jnp.ones((64, 4))
    texts = {}
    for name, function in PROGRAMS.items():
        parted = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        texts[name] = jax.jit(parted).lower(x).compile().as_text()
    print(json.dumps(texts))


if __name__ == "__main__":
    main()
