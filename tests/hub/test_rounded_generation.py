"""Generation, streams and translation with keys and values of few bits are loops over steps with such a cache."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.decode import Beam, Greedy
from flax_transformer.hub.generate import stream_tokens
from flax_transformer.models.causal import Causal
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.models.text.transformer import transformer_tiny
from flax_transformer.nn import quantize_cache
from flax_transformer.task.translator import ParallelSearch, Search, decode_batch
from tests.fake_devices import on_eight

pytestmark = pytest.mark.proves("cache", "generation, translation and streams with int8, on a mesh too")

IDS, NEW = np.random.default_rng(0).integers(4, 31, (2, 5)), 12


@pytest.fixture(scope="module")
def pretrained():
    model = jax.jit(lambda: Causal(gpt2_tiny(vocab=31), rngs=nnx.Rngs(0)))()
    return hub.wrap(jax.tree.map(lambda x: 3 * x, model), "GPT2LMHeadModel", eos_token_id=2, pad_token_id=3)


def greedily(model, cache, token, count):
    step, tokens, logits = jax.jit(type(model).step), [], []
    for _ in range(count):
        found, cache = step(model, cache, token)
        token = found.argmax(-1)
        tokens.append(token)
        logits.append(found)
    return np.stack(tokens, 1), np.stack(logits, 1)


@pytest.mark.rotates
def test_generation_is_steps_with_a_rounded_cache(pretrained):
    model, ids = pretrained.model, jnp.asarray(IDS)
    _, cache = model.prefill(ids[:, :-1])
    tokens, few = greedily(model, quantize_cache(cache, "int8").grow(20), ids[:, -1], NEW)
    _, plain = greedily(model, cache.grow(20), ids[:, -1], 1)
    settings = {"max_new_tokens": NEW, "eos_token_id": None}
    found = np.asarray(pretrained.generate(IDS, cache="int8", **settings))[:, 5:]
    np.testing.assert_array_equal(found, tokens)
    assert (few[:, 0] != plain[:, 0]).any()
    chunks = list(stream_tokens(pretrained, IDS, cache="int8", chunk=5, **settings))
    np.testing.assert_array_equal(np.concatenate(chunks, axis=1)[:, :NEW], tokens)


@pytest.mark.rotates
def test_each_of_several_beams_is_another_text(pretrained):
    settings = {"max_new_tokens": 6, "cache": "float8_e4m3fn"}
    found = np.asarray(pretrained.generate(IDS, num_beams=3, num_return_sequences=3, **settings))
    assert found.shape[0] == 6
    assert len({tuple(row) for row in found}) == 6


@pytest.mark.rotates
def test_translation_is_steps_with_a_rounded_cache_of_the_memory_too():
    model = transformer_tiny(vocab=40).build(nnx.Rngs(1))
    source, lengths = jnp.asarray(np.random.default_rng(1).integers(3, 40, (2, 6))), jnp.array([6, 4])
    config = Greedy(max_length=8, eos=())
    found = decode_batch(model, source, lengths, config=config, bos=1, rounds="int8")
    cache = quantize_cache(model.init_cache(model.encode(source, lengths), lengths, 8), "int8")
    assert cache.memory.value.qvalue.dtype == jnp.int8
    tokens, _ = greedily(model, cache, jnp.ones(2, int), 8)
    np.testing.assert_array_equal(found.best.tokens, tokens)
    beams = decode_batch(model, source, lengths, config=Beam(max_length=8, eos=(), beams=1), bos=1, rounds="int8")
    np.testing.assert_array_equal(beams.best.tokens, tokens)


def test_what_has_no_such_cache_is_said(pretrained):
    with pytest.raises(ValueError, match="cache must be int8 or float8_e4m3fn, got 'int4'"):
        pretrained.generate(IDS, cache="int4")
    with pytest.raises(ValueError, match="writes all tokens at once has no cache to round, got cache='int8'"):
        ParallelSearch(cache="int8")
    assert Search(cache="int8") != Search()


CODE = """
import json
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
from flax_transformer.models.text.llama import llama2_7b
from flax_transformer.nn import quantize_cache, with_fields
from flax_transformer.parallel import MeshConfig, batch_sharding, make_mesh, tree_shardings

config = with_fields(llama2_7b(), embed=32, heads=4, kv_heads=2, inner=64, depth=2, vocab=64, max_length=32)
model = config.build(nnx.Rngs(0))
tokens = jnp.asarray(np.random.default_rng(0).integers(0, 64, (4, 6)))

@jax.jit
def begin(model, tokens):
    return quantize_cache(model.prefill(tokens)[1], "int8").grow(8)

step = jax.jit(type(model).step)
mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
alone, _ = step(model, begin(model, tokens[:, :-1]), tokens[:, -1])
with jax.set_mesh(mesh):
    placed, rows = jax.device_put(model, tree_shardings(model, mesh)), jax.device_put(tokens, batch_sharding(mesh))
    cache = begin(placed, rows[:, :-1])
    logits, after = step(placed, cache, rows[:, -1])
print(json.dumps({
    "error": float(np.abs(np.asarray(logits) - alone).max() / np.abs(alone).max()),
    "scales": [after.layers.value.scale.sharding.shard_shape(after.layers.value.scale.shape)[i] for i in (1, 2)],
    "values": [after.layers.value.qvalue.sharding.shard_shape(after.layers.value.qvalue.shape)[i] for i in (1, 2)],
}))
"""


@pytest.mark.slow
def test_on_a_mesh_scales_are_split_as_their_heads():
    found, _ = on_eight("-c", CODE)
    assert found["error"] < 1e-2  # a value between two may be rounded either way
    assert found["scales"] == found["values"] == [1, 1]  # of 4 rows and 2 heads
