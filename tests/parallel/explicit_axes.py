"""Run by test_explicit.py with eight CPU devices: the same on meshes with Explicit and with Auto axes, as JSON."""

import json
import sys

import eight_devices
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType

from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.models.head import Classifier, with_head
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.nn import (
    Block,
    EmbeddingConfig,
    RelativeConfig,
    apply_stack,
    init_stack,
    transformer_block,
    with_fields,
)
from flax_transformer.ops import Mask, attention, chunked_cross_entropy, multiply_rows, take_rows
from flax_transformer.parallel import batch_sharding, tree_shardings
from flax_transformer.parallel.collectives import collectives_of
from flax_transformer.train.state import init_state
from flax_transformer.train.step import jit_train_step, make_train_step

SIZES = {"data": 2, "fsdp": 2, "tensor": 2}
BLOCK = transformer_block(embed=32, heads=4, inner=64, norm_position="pre", dropout=0.1)


def make_mesh(kind):
    return jax.make_mesh(tuple(SIZES.values()), tuple(SIZES), axis_types=(kind,) * len(SIZES))


def calls():
    """What is called, by name: a function, the modules it is given, and its arrays with rows in front."""
    block = Block(BLOCK, rngs=nnx.Rngs(0))
    stack = init_stack(lambda r: Block(BLOCK, rngs=r), 2, key=jax.random.key(0))
    causal = eight_devices.init_causal(jax.random.key(0))
    t5 = Seq2Seq(with_fields(eight_devices.SEQ2SEQ, relative=RelativeConfig()), rngs=nnx.Rngs(0))
    embedding = EmbeddingConfig(vocab=64, embed=32, position="learned", max_length=16, types=2, norm=1e-5)
    encoder = EncoderConfig(embedding=embedding, block=BLOCK, depth=2)
    bert = Classifier(with_head(encoder, outputs=3, pool="last"), rngs=nnx.Rngs(0))
    table = {"token": {"embedding": jax.random.normal(jax.random.key(1), (64, 32))}}
    x, key = jax.random.normal(jax.random.key(2), (8, 8, 32)), jax.random.key(3)
    tokens = jax.random.randint(key, (8, 8), 3, 60)
    rows = lambda t: t["token"]["embedding"]  # noqa: E731

    def cached(m, tokens):
        _, cache = m.prefill(tokens)
        return m.step(cache.grow(12), tokens[:, 0])[0]

    def heads(x, backend):
        q = x.reshape(8, 8, 4, 8)
        return attention(q, q, q, Mask(causal=True), backend=backend)

    return {
        "block": (lambda b, x: b(x, key=key), block, x),
        "block, with a mask": (lambda b, x, t: b(x, mask=Mask(causal=True, lengths=t[:, 0])), block, x, tokens),
        "feed-forward": (lambda b, x: b.feedforward(x), block, x),
        "attention layer": (lambda b, x: b.attention(x), block, x),
        "stack": (lambda s, x: apply_stack(s, x, remat="full"), stack, x),
        "gradient of a stack": (lambda s, x: jax.grad(lambda s: apply_stack(s, x).sum())(s), stack, x),
        "xla": (lambda _, x: heads(x, "xla"), {}, x),
        "blockwise": (lambda _, x: heads(x, "blockwise"), {}, x),
        "lookup": (lambda t, tokens: take_rows(rows(t), tokens), table, tokens),
        "products": (lambda t, x: multiply_rows(rows(t), x), table, x),
        "loss": (lambda t, x, tokens: chunked_cross_entropy(x, rows(t), tokens, chunk=4), table, x, tokens),
        "decoder": (lambda m, t: m(t), causal, tokens),
        "decoding": (cached, causal, tokens),
        "encoder-decoder": (lambda m, t: m(t, t, t[:, 0]), t5, tokens),
        "classifier": (lambda m, t: m.head(m.backbone(t), jnp.arange(8) % 8), bert, tokens),
    }


def outcome(kind, function, model, *arrays):
    """Return results, their layouts, and what the program costs."""
    mesh = make_mesh(kind)
    model = jax.device_put(model, tree_shardings(model, mesh))
    arrays = jax.device_put(arrays, batch_sharding(mesh))
    with jax.set_mesh(mesh):
        compiled = jax.jit(function).lower(model, *arrays).compile()
        made = compiled(model, *arrays)
        eager = function(model, *arrays)
    found = sorted((each.kind, each.bytes, each.times) for each in collectives_of(compiled))
    leaves = jax.tree.leaves(made)
    for leaf, other in zip(leaves, jax.tree.leaves(eager), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=2e-4, atol=2e-5)
    return leaves, compiled.cost_analysis()["flops"], found


def compare(*names):
    found, every = {}, calls()
    for name in names:
        call = every[name]
        whole = jax.tree.leaves(jax.jit(call[0])(*call[1:]))
        (_, flops, sent), (theirs, more, also) = (outcome(kind, *call) for kind in (AxisType.Auto, AxisType.Explicit))
        split = [str(leaf.sharding.spec) for leaf in theirs]
        apart = max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in zip(whole, theirs, strict=True))
        found[name] = {"apart": apart, "flops": more / flops, "sent": sent == also, "split": split}
    return found


def train(kind):
    mesh = None if kind is None else make_mesh(kind)
    optimizer = optax.adam(1e-3)
    state = init_state(eight_devices.init_causal, optimizer, jax.random.key(0), mesh=mesh)
    objective = eight_devices.RUNS["causal"]["objective"]
    step = jit_train_step(make_train_step(objective, optimizer, accumulate=2), state, mesh)
    losses = []
    for batch, _ in zip(eight_devices.texts(), range(3), strict=False):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    return losses


def main(*names):
    kinds = {"one device": None, "Auto": AxisType.Auto, "Explicit": AxisType.Explicit}
    print(json.dumps({name: train(kind) for name, kind in kinds.items()} if names == ("train",) else compare(*names)))


if __name__ == "__main__":
    main(*sys.argv[1:])
