"""Mixtral has the published sizes, says the same in config.json, and decodes with a cache what it says at once."""

import json
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.hub.family.mixtral import CONFIG, FAMILIES
from flax_transformer.hub.fields import Fields
from flax_transformer.models.causal import Causal
from flax_transformer.models.text import mixtral
from flax_transformer.nn import ExpertsConfig, with_fields

PUBLISHED = {"mixtral_8x7b": 46_702_792_704, "mixtral_8x22b": 140_620_634_112}
"""Parameters as the safetensors of mistralai/Mixtral-8x7B-v0.1 and Mixtral-8x22B-v0.1 hold them."""
FILES = {
    "mixtral_8x7b": {
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "num_local_experts": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": None,
        "tie_word_embeddings": False, "vocab_size": 32000,
    },
    "mixtral_8x22b": {
        "hidden_act": "silu", "hidden_size": 6144, "intermediate_size": 16384, "max_position_embeddings": 65536,
        "num_attention_heads": 48, "num_experts_per_tok": 2, "num_hidden_layers": 56, "num_key_value_heads": 8,
        "num_local_experts": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": None,
        "tie_word_embeddings": False, "vocab_size": 32000,
    },
}  # fmt: skip
SMALL = with_fields(
    mixtral.mixtral_8x7b(31), depth=2, embed=12, heads=4, kv_heads=2, head_width=6, inner=16, experts=4,
    max_length=16, init_std=0.3,
)  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_sizes_and_fields(name):
    config = getattr(mixtral, name)()
    model = nnx.eval_shape(lambda: Causal(config, rngs=nnx.Rngs(0)))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(model)) == PUBLISHED[name]
    assert CONFIG.read(Fields.of(FILES[name])) == config
    written = json.loads(json.dumps(FAMILIES["mixtral"].write(config)))
    assert CONFIG.read(Fields.of(written)) == config


@pytest.mark.rotates
@pytest.mark.proves("mixtral", "decode", "a token at a time as all at once, windows in turns")
@pytest.mark.parametrize("window", [pytest.param(None, marks=pytest.mark.slow), (3, None)])
def test_steps_after_a_prompt_equal_one_pass(window):
    model = Causal(replace(SMALL, window=window), rngs=nnx.Rngs(0))
    tokens = jax.random.randint(jax.random.key(1), (3, 8), 0, 31)
    whole = jax.jit(lambda model, tokens: model(tokens))(model, tokens)
    found, cache = jax.jit(lambda model, tokens: model.prefill(tokens))(model, tokens[:, :4])
    found, cache, step = [found], cache.grow(8), jax.jit(lambda model, cache, token: model.step(cache, token))
    for t in range(4, 8):
        logits, cache = step(model, cache, tokens[:, t])
        found.append(logits)
    np.testing.assert_allclose(jnp.stack(found, 1), whole[:, 3:], atol=2e-5)


def test_experts_are_each_as_the_layer_was():
    many = SMALL.block.feedforward
    assert isinstance(many, ExpertsConfig)
    assert (many.experts, many.active, many.gated, many.bias, many.inner) == (4, 2, True, False, 16)
    assert many.expert == with_fields(mixtral.mistral_7b(31).block.feedforward, embed=12, inner=16, init_std=0.3)
