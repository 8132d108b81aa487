"""Run by test_traffic.py with eight CPU devices, `CASE…`; prints the collectives of compiled training steps as JSON."""

import json
import sys
from dataclasses import asdict, replace
from functools import partial

import eight_devices
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from flax_transformer.models.causal import Causal
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text.llama import llama2_7b
from flax_transformer.nn import embedding, with_fields
from flax_transformer.objective import TokenLoss
from flax_transformer.parallel import MeshConfig, batch_sharding, make_mesh, path_name
from flax_transformer.parallel.collectives import collectives_of
from flax_transformer.train.state import abstract_state, parameter_count
from flax_transformer.train.step import laid_out, make_train_step

CASES = {
    "data": (MeshConfig(data=8), "none"),
    "data×pipeline": (MeshConfig(data=4, pipeline=2), "none"),
    "fsdp": (MeshConfig(data=1, fsdp=8), "none"),
    "fsdp, computed again": (MeshConfig(data=1, fsdp=8), "full"),
    "fsdp, products kept": (MeshConfig(data=1, fsdp=8), "dots"),
}


def _init(remat, key):
    return Seq2Seq(with_fields(eight_devices.SEQ2SEQ, remat=remat), rngs=nnx.Rngs(key))


def decoder_step(mesh, window=None, **fields):
    """Compile a step of a small decoder; give its collectives, and how many numbers its layers' kernels have.

    A device of eight has 16 tokens, fewer than its table has rows.
    """
    embedding.LARGE = 0
    small = with_fields(llama2_7b(512), embed=32, heads=4, kv_heads=4, inner=64, **fields)
    config = replace(small, window=window)
    optimizer, mesh = optax.adam(1e-3), make_mesh(mesh)
    state = abstract_state(lambda key: Causal(config, rngs=nnx.Rngs(key)), optimizer)
    tokens = jax.ShapeDtypeStruct((8, 16), jnp.int32, sharding=batch_sharding(mesh))
    weights = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=batch_sharding(mesh))
    batch = {"inputs": {"tokens": tokens}, "labels": tokens, "weights": weights}
    leaves = jax.tree_util.tree_leaves_with_path(state.model.trunk)
    with jax.set_mesh(mesh):
        step = laid_out(make_train_step(TokenLoss(), optimizer), state, mesh)
        found = [asdict(each) for each in collectives_of(step.lower(state, batch).compile())]
    return {"found": found, "kernels": sum(leaf.size for path, leaf in leaves if path_name(path).endswith("kernel"))}


DECODERS = {
    "a head of its own": (MeshConfig(data=2, fsdp=4), {"depth": 2}),
    "a head that is the table": (MeshConfig(data=2, fsdp=4), {"depth": 2, "tied_output": True}),
    **{
        f"layers in turns, {remat}": (
            MeshConfig(data=1, fsdp=8), {"depth": 5, "window": (4, 4, None), "remat": remat}
        )
        for remat in ("none", "full", "dots")
    },
}  # fmt: skip


def main(*names):
    optimizer = optax.adam(1e-3)
    # Each device has 128 tokens, as many as the table has rows, in eight chunks.
    step = make_train_step(TokenLoss(chunk=16), optimizer)
    state = abstract_state(eight_devices.init, optimizer)
    leaves = jax.tree_util.tree_leaves_with_path((state.model.encoder, state.model.decoder))
    kernels = [leaf.size for path, leaf in leaves if path_name(path).endswith("kernel")]
    result = {
        "parameters": parameter_count(state.model),
        "table": jax.tree.leaves(state.model.embedding)[0].size,
        "kernels": sum(kernels),
        "hidden": eight_devices.ROWS * eight_devices.LENGTH * eight_devices.SEQ2SEQ.embedding.embed,
    }
    for name in names:
        if name in DECODERS:
            mesh, fields = DECODERS[name]
            result[name] = decoder_step(mesh, **fields)
            continue
        config, remat = CASES[name]
        state = abstract_state(partial(_init, remat), optimizer)
        mesh = make_mesh(config)
        place = batch_sharding(mesh)
        batch = jax.tree.map(
            lambda leaf, place=place: jax.ShapeDtypeStruct(jnp.shape(leaf), leaf.dtype, sharding=place),
            jax.tree.map(partial(jnp.repeat, repeats=4, axis=0), next(eight_devices.sentences())),
        )
        with jax.set_mesh(mesh):
            compiled = laid_out(step, state, mesh).lower(state, batch).compile()
        result[name] = [asdict(each) for each in collectives_of(compiled)]
        result[f"{name}, products"] = compiled.as_text().count(" dot(")
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
