"""Llama and its kin: the sizes that were published, and configs that say the same in config.json."""

import json
import math

import jax
import pytest
from flax import nnx

from flax_transformer.hub.family.llama import FAMILIES
from flax_transformer.hub.fields import Fields
from flax_transformer.models.causal import Causal
from flax_transformer.models.text import llama
from flax_transformer.train.config import from_json, to_json

pytestmark = pytest.mark.slow

PUBLISHED = {
    "llama2_7b": 6_738_415_616,
    "llama3_8b": 8_030_261_248,
    "llama3_2_1b": 1_235_814_400,
    "mistral_7b": 7_241_732_096,
    "qwen2_5_0_5b": 494_032_768,
    "qwen3_0_6b": 596_049_920,
}
"""Parameters as the safetensors of meta-llama/Llama-2-7b-hf, Meta-Llama-3-8B and Llama-3.2-1B,
mistralai/Mistral-7B-v0.1, Qwen/Qwen2.5-0.5B and Qwen/Qwen3-0.6B-Base hold them, tied ones once."""

FILES = {
    "llama2_7b": {
        "model_type": "llama", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008,
        "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None, "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    "llama3_8b": {
        "model_type": "llama", "attention_bias": False, "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 8192, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 500000.0, "vocab_size": 128256,
    },
    "llama3_2_1b": {
        "model_type": "llama", "attention_bias": False, "head_dim": 64, "hidden_size": 2048, "mlp_bias": False,
        "intermediate_size": 8192, "max_position_embeddings": 131072, "num_attention_heads": 32,
        "num_hidden_layers": 16, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3",
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": True, "vocab_size": 128256,
    },
    "mistral_7b": {
        "model_type": "mistral", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    "qwen2_5_0_5b": {
        "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768,
        "max_window_layers": 24, "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True,
        "use_sliding_window": False, "vocab_size": 151936,
    },
    "qwen3_0_6b": {
        "model_type": "qwen3", "attention_bias": False, "head_dim": 128, "hidden_size": 1024,
        "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
        "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
        "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True,
        "use_sliding_window": False, "vocab_size": 151936,
    },
}  # fmt: skip
"""What their config.json say of sizes."""


def read(fields):
    kind = FAMILIES[fields["model_type"]]
    return next(iter(kind.architectures.values())).config(Fields.of(fields))


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_number_of_parameters(name):
    config = getattr(llama, name)()
    model = nnx.eval_shape(lambda: Causal(config, rngs=nnx.Rngs(0)))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(model)) == PUBLISHED[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_are_what_the_published_config_says(name):
    assert read(FILES[name]) == getattr(llama, name)()


@pytest.mark.parametrize("name", PUBLISHED)
def test_configs_survive_being_written(name):
    config = getattr(llama, name)()
    kind = FILES[name]["model_type"]
    written = json.loads(json.dumps({"model_type": kind, **FAMILIES[kind].write(config)}))
    assert read(written) == config
    assert from_json(json.loads(json.dumps(to_json(config)))) == config


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}),
        ("llama", {"head_dim": 6, "attention_dropout": 0.25, "hidden_act": "gelu_pytorch_tanh"}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 5}, "initializer_range": 0.5}),
        ("mistral", {"sliding_window": None}),
        ("mistral", {"sliding_window": 7}),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0}),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 64}),
        ("qwen3", {"attention_bias": True, "rms_norm_eps": 0.5}),
    ],
)
def test_reading_what_was_written_gives_the_same_config(model_type, fields):
    once = read({"model_type": model_type, **fields})
    again = read({"model_type": model_type, **FAMILIES[model_type].write(once)})
    assert again == once
    assert hash(again) == hash(once)


def test_fields_that_are_missing_mean_what_they_mean_in_transformers():
    assert read({"model_type": "llama"}).block.attention.kv_heads == 32
    assert read({"model_type": "mistral"}).block.attention.kv_heads == 8
    assert read({"model_type": "mistral"}).window == 4096
    assert read({"model_type": "qwen2", "use_sliding_window": True, "num_hidden_layers": 28}).window is None
    assert read({"model_type": "qwen3", "hidden_size": 64}).block.attention.width == 128
