"""Run by test_stack.py with eight CPU devices, `CASE…`: stacks as pipelines and not; prints errors as JSON."""

import json
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from flax_transformer.nn import Block, Cycle, Rotary, apply_stack, init_stack, transformer_block, with_precision
from flax_transformer.ops import Mask, attention
from flax_transformer.parallel import MeshConfig, make_mesh, path_name

B, T, S, D, L = 16, 8, 5, 16, 4
COMMON = {"embed": D, "heads": 4, "inner": 32, "dropout": 0.1, "norm_position": "pre"}
PLAIN = transformer_block(**COMMON, kv_heads=2, rotary=Rotary(), attention_dropout=0.1)
EXPERTS = transformer_block(**COMMON, kv_heads=2, experts=4, capacity=1.0)
DROPLESS = transformer_block(**COMMON, kv_heads=2, experts=4, activation_dropout=0.2)
CROSS = transformer_block(**COMMON, cross=True, attend=partial(attention, backend="blockwise"))


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def integers(seed, top, *shape):
    return jax.random.randint(jax.random.key(seed), shape, 0, top)


DENSE = jax.random.bernoulli(jax.random.key(8), 0.6, (B, 1, T, T)) | jnp.eye(T, dtype=bool)
SEGMENTS = jnp.sort(integers(4, 3, B, T), axis=1)
CASES = {
    "packed rows": (PLAIN, MeshConfig(data=2, pipeline=4), {
        "mask": Mask(causal=True, segments=(SEGMENTS, SEGMENTS)), "positions": integers(5, T, B, T),
        "bias": normal(6, 4, T, T), "remat": "full",
    }),
    "a bias for each row": (PLAIN, MeshConfig(data=2, pipeline=2, tensor=2), {
        "mask": Mask(dense=DENSE, causal=True), "bias": normal(7, B, 1, T, T), "unroll": True, "remat": "offload",
    }),
    "a memory": (CROSS, MeshConfig(data=1, fsdp=2, pipeline=4), {
        "memory": normal(9, B, S, D), "mask": Mask(causal=True, window=3, offset=jnp.zeros(B, jnp.int32)),
        "memory_mask": Mask(lengths=integers(10, S, B) + 1),
    }),
    "turns, and experts": (EXPERTS, MeshConfig(data=2, pipeline=2, expert=2), {
        "mask": Cycle((Mask(causal=True, lengths=integers(10, T, B) + 1), Mask(window=(2, 0)))),
    }),
    "experts that drop nothing": (DROPLESS, MeshConfig(data=2, pipeline=2, expert=2), {"mask": Mask(causal=True)}),
}  # fmt: skip


def value_and_gradients(config, given):
    blocks = init_stack(lambda rngs: Block(config, rngs=rngs), L, key=jax.random.key(0))
    weights = normal(2, B, T, D)
    floats = {name: given[name] for name in ("bias", "memory") if name in given}

    def loss(blocks, x, floats):
        rest = {**given, **floats}
        memory = [rest.pop("memory")] if "memory" in rest else []
        y = apply_stack(blocks, x, *memory, key=jax.random.key(3), **rest)
        return jnp.sum(y * weights), y

    x = normal(1, B, T, D).astype(config.residual.precision.compute)
    return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(blocks, x, floats)


def worst_error(expected, got):
    errors = [0.0]
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(got), strict=True):
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        if "key.bias" not in path_name(path):  # zero but for rounding
            errors.append(float(np.abs(a - b).max() / np.abs(a).max()))
    return max(errors)


def main(*names):
    worst = {}
    for name in {*names} - {"bfloat16"}:
        config, mesh, given = CASES[name]
        expected = value_and_gradients(config, given)
        with jax.set_mesh(make_mesh(mesh)):
            worst[name] = worst_error(expected, value_and_gradients(config, given))
    if "bfloat16" in names:
        worst["bfloat16"] = in_bfloat16()
    print(json.dumps(worst))


def in_bfloat16():
    """How far a pipeline of short floats is from the stack in float32, and how far the stack of short floats is."""
    short = with_precision(PLAIN, compute="bfloat16", params="bfloat16")
    given = {"mask": Mask(causal=True), "bias": normal(6, 4, T, T)}
    expected = value_and_gradients(with_precision(PLAIN, params="bfloat16"), given)
    with jax.set_mesh(make_mesh(MeshConfig(data=4, pipeline=2))):
        got = value_and_gradients(short, given)
    return [worst_error(expected, each) for each in (got, value_and_gradients(short, given))]


if __name__ == "__main__":
    main(*sys.argv[1:])
