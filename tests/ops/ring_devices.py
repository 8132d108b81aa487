"""Run by test_ring.py in a process with eight CPU devices; prints what it found as JSON."""

import json
import re
import sys
from collections import Counter

from jaxtyping import install_import_hook

with install_import_hook("flax_transformer", "beartype.beartype"):
    import flax_transformer.ops.attention.ring  # noqa: F401

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from flax_transformer.nn import Block, transformer_block
from flax_transformer.nn.stack import apply_stack, init_stack
from flax_transformer.ops import Dropout, Mask, attention, explain_attention
from flax_transformer.ops.attention import ring
from flax_transformer.ops.row_random import rows_of

AXES = ("data", "fsdp", "tensor", "sequence")
KEY = jax.random.split(jax.random.key(0), 12)
B, T, N, K, H = 2, 32, 4, 2, 8
WINDOW = Mask(causal=True, window=5)
OFFSET = Mask(causal=True, window=(9, 9), offset=jnp.array([0, -3]))
LENGTHS = Mask(lengths=jnp.array([0, 19]))
SEGMENTS = Mask(segments=(jax.random.randint(KEY[0], (B, T), 0, 3), jax.random.randint(KEY[1], (1, T), 0, 3)))
DENSE = Mask(dense=jax.random.bernoulli(KEY[2], 0.3, (1, N, T, T)))

# name: (mask, shape of the bias, whether to drop, key/value heads, keys)
CASES = {
    "nothing": (None, None, False, K, T),
    "causal": (Mask(causal=True), None, False, K, T),
    "window": (Mask(window=(5, 2)), None, True, K, T),
    "causal window, bias": (WINDOW, (1, N, T, T), False, K, T),
    "lengths, bias that every query shares": (LENGTHS, (B, 1, 1, T), True, K, T),
    "segments": (SEGMENTS, None, False, N, T),
    "dense, bias that heads share": (DENSE, (B, 1, T, T), False, 1, T),
    "offset": (OFFSET, None, False, K, T),
    "other keys": (LENGTHS, None, True, K, 2 * T),
    "all": (WINDOW & LENGTHS & SEGMENTS & DENSE, (N, T, T), True, K, T),
}
FEW = ("causal", "all")
MESHES = {"2": (1, 1, 2), "4": (1, 1, 4), "8": (1, 1, 8), "2 × 2 × 2": (2, 2, 2)}


def make_mesh(data, tensor, sequence):
    devices = jax.devices()[: data * tensor * sequence]
    return jax.make_mesh((data, 1, tensor, sequence), AXES, axis_types=(AxisType.Auto,) * 4, devices=devices)


def error(ours, theirs):
    """Largest difference relative to the largest value, over all arrays."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return max(float(jnp.abs(jnp.asarray(a) - jnp.asarray(b)).max() / jnp.abs(b).max()) for a, b in pairs)


def run(case, backend):
    """Return the output, the gradients by q, k, v and bias, and the derivative along them."""
    mask, shape, drop, heads, S = CASES[case]
    q, pull = (jax.random.normal(KEY[i], (B, T, N, H)) for i in (3, 4))
    k, v = (jax.random.normal(KEY[i], (B, S, heads, H)) for i in (5, 6))
    bias = None if shape is None else jax.random.normal(KEY[7], shape)
    dropout = Dropout(0.3, KEY[8]) if drop else None

    @jax.jit
    def both(q, k, v, bias, mask, dropout, pull):
        call = lambda q, k, v, bias: attention(q, k, v, mask, bias, dropout=dropout, backend=backend)  # noqa: E731
        out, back = jax.vjp(call, q, k, v, bias)
        along = jax.jvp(call, (q, k, v, bias), jax.tree.map(jnp.sin, (q, k, v, bias)))[1]
        return out, back(pull), along

    return both(q, k, v, bias, mask, dropout, pull)


def errors(every):
    """Compare with XLA: a few cases on four devices and all at once on eight, or every case on every mesh."""
    found = {}
    for case in CASES if every else FEW:
        expected = jax.device_get(run(case, "xla"))
        found[case] = {}
        for name, sizes in MESHES.items():
            if every or name == ("2 × 2 × 2" if case == "all" else "4"):
                with jax.set_mesh(make_mesh(*sizes)):
                    found[case][name] = error(jax.device_get(run(case, "ring")), expected)
    return found


def stack_error():
    """Compare loss and gradients of a scanned, rematerialised stack with and without a mesh, of rows of a batch too."""
    # Without biases: the gradient by those of keys is zero but for rounding.
    cfg = transformer_block(embed=16, heads=4, kv_heads=2, inner=32, bias=False, dropout=0.1, attention_dropout=0.2)
    blocks = init_stack(lambda rngs: Block(cfg, rngs=rngs), 3, key=KEY[9])
    x, pull = (jax.random.normal(KEY[i], (4, T, 16)) for i in (10, 3))
    rows = jnp.array([5, 0, 3, 6])

    @jax.jit
    def step(blocks, x):
        def loss(blocks, x):
            with rows_of(rows, 8):
                y = apply_stack(blocks, x, mask=Mask(causal=True), key=KEY[11], remat="full")
            return (y * pull).sum()

        return jax.value_and_grad(loss, argnums=(0, 1))(blocks, x)

    expected = jax.device_get(step(blocks, x))
    with jax.set_mesh(make_mesh(2, 1, 4)):
        given = jax.device_put(x, PartitionSpec("data", "sequence"))
        compiled = step.lower(blocks, given).compile()
        return error(jax.device_get(compiled(blocks, given)), expected), collectives(compiled)


def collectives(compiled):
    kinds = "all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute"
    return Counter(re.findall(rf"({kinds})(?:-start)?\(", compiled.as_text()))


def compiled(length, sizes):
    """Compile forward and backward; operands and results lie split."""
    mesh = make_mesh(*sizes)
    place = NamedSharding(mesh, PartitionSpec("data", "sequence", "tensor"))
    q, k = (jax.ShapeDtypeStruct((B, length, heads, H), jnp.float32, sharding=place) for heads in (N, K))

    def both(q, k, v, pull):
        out, back = jax.vjp(lambda q, k, v: attention(q, k, v, Mask(causal=True)), q, k, v)
        return out, back(pull)

    with jax.set_mesh(mesh):
        assert "ring       chosen" in explain_attention(q, k, k)
        return jax.jit(both, out_shardings=place).lower(q, k, k, q).compile()


def main():
    ring._BLOCK, ring._LEAST = 4, 1
    result = {"devices": len(jax.devices()), "errors": errors("every" in sys.argv)}
    if "every" in sys.argv:
        result |= costs()
    else:
        result |= reasons()
    print(json.dumps(result))


def costs():
    result = {}
    result["stack"], result["stack collectives"] = stack_error()
    ring._BLOCK, ring._LEAST = 32, 8
    programs = {n: compiled(128 * n, (1, 1, n)) for n in (2, 8)}
    result["memory"] = {n: program.memory_analysis().temp_size_in_bytes for n, program in programs.items()}
    result["collectives"] = {n: collectives(program) for n, program in programs.items()}
    result["collectives"]["2 × 2 × 2"] = collectives(compiled(256, (2, 2, 2)))
    return result


def reasons():
    ring._BLOCK, ring._LEAST = 32, 8
    result = {"collectives": {"2": collectives(compiled(256, (1, 1, 2)))}}
    q = jax.random.normal(KEY[0], (1, 16, 2, 4))
    with jax.set_mesh(make_mesh(1, 1, 2)):
        rbg = Dropout(0.1, jax.random.key(0, impl="rbg"))
        result["reasons"] = {
            "odd": explain_attention(q[:, :15], q, q).splitlines()[0],
            "one query": explain_attention(q[:, :1], q, q).splitlines()[0],
            "rbg": explain_attention(q, q, q, dropout=rbg).splitlines()[0],
            "prime": explain_attention(*[jax.ShapeDtypeStruct((1, 4 * 521, 2, 4), "float32")] * 3).splitlines()[0],
        }
        result["eager"] = error(attention(q, q, q, backend="ring"), attention(q, q, q, backend="xla"))
    return result


if __name__ == "__main__":
    main()
