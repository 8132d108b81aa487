"""Newer decoders: the published sizes, configs as config.json says them, and a token at a time as all at once."""

import json
import math
from dataclasses import replace

import jax
import pytest

from flax_transformer.hub.fields import Fields
from flax_transformer.hub.registry import families
from flax_transformer.models.preset import abstract, find_preset
from flax_transformer.nn import AlibiConfig, with_fields
from flax_transformer.ops import LongScaling, YarnScaling
from flax_transformer.train.config import from_json, to_json
from tests.hub.decoder_case import steps_equal_one_pass

GEMMA = {
    "attention_bias": False, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-06,
    "query_pre_attn_scalar": 256,
}  # fmt: skip
GEMMA2 = {
    **GEMMA, "model_type": "gemma2", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    "max_position_embeddings": 8192, "rope_theta": 10000.0, "sliding_window": 4096, "vocab_size": 256000,
}  # fmt: skip
GEMMA3 = {
    **GEMMA, "model_type": "gemma3_text", "rope_theta": 1000000, "rope_local_base_freq": 10000,
    "sliding_window_pattern": 6, "final_logit_softcapping": None, "attn_logit_softcapping": None,
}  # fmt: skip
QWEN = {
    "model_type": "qwen3_moe", "attention_bias": False, "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu",
    "max_position_embeddings": 40960, "mlp_only_layers": [], "norm_topk_prob": True, "num_experts": 128,
    "num_experts_per_tok": 8, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0,
    "sliding_window": None, "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
PHI = {
    "model_type": "phi3", "attention_bias": False, "embd_pdrop": 0.0, "hidden_act": "silu", "resid_pdrop": 0.0,
    "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "tie_word_embeddings": False,
}  # fmt: skip
NEOX = {
    "model_type": "gpt_neox", "hidden_act": "gelu", "layer_norm_eps": 1e-05, "max_position_embeddings": 2048,
    "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False, "use_parallel_residual": True,
    "vocab_size": 50304,
}  # fmt: skip
OPT = {
    "model_type": "opt", "_remove_final_layer_norm": False, "activation_function": "relu", "attention_dropout": 0.0,
    "do_layer_norm_before": True, "dropout": 0.1, "init_std": 0.02, "layerdrop": 0.0, "max_position_embeddings": 2048,
    "vocab_size": 50272,
}  # fmt: skip
FALCON = {
    "model_type": "falcon", "attention_dropout": 0.0, "hidden_dropout": 0.0, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "alibi": False, "bias": False, "parallel_attn": True, "vocab_size": 65024,
}  # fmt: skip
DEEPSEEK = {
    "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02,
    "kv_lora_rank": 512, "max_position_embeddings": 163840, "moe_layer_freq": 1, "num_experts_per_tok": 8,
    "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_theta": 10000, "tie_word_embeddings": False, "v_head_dim": 128,
}  # fmt: skip
YARN = {"beta_fast": 32, "beta_slow": 1, "factor": 40, "original_max_position_embeddings": 4096, "type": "yarn"}
DEEPSEEK2 = {
    **DEEPSEEK, "model_type": "deepseek_v2", "norm_topk_prob": False, "num_experts_per_tok": 6, "n_shared_experts": 2,
    "first_k_dense_replace": 1, "scoring_func": "softmax", "vocab_size": 102400,
    "rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
}  # fmt: skip
FILES = {
    "deepseek_v3": {
        **DEEPSEEK, "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
        "moe_intermediate_size": 2048, "num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 61,
        "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4, "n_routed_experts": 256, "n_shared_experts": 1,
        "norm_topk_prob": True, "num_nextn_predict_layers": 1, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "vocab_size": 129280, "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "deepseek_v2": {
        **DEEPSEEK2, "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536,
        "num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 60, "n_group": 8, "topk_group": 3,
        "n_routed_experts": 160, "routed_scaling_factor": 16.0, "topk_method": "group_limited_greedy",
    },
    "deepseek_v2_lite": {
        **DEEPSEEK2, "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
        "num_attention_heads": 16, "num_key_value_heads": 16, "num_hidden_layers": 27, "n_group": 1, "topk_group": 1,
        "n_routed_experts": 64, "routed_scaling_factor": 1.0, "topk_method": "greedy", "q_lora_rank": None,
    },
    "gemma2_2b": {
        **GEMMA2, "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8, "num_hidden_layers": 26,
        "num_key_value_heads": 4,
    },
    "gemma2_9b": {
        **GEMMA2, "hidden_size": 3584, "intermediate_size": 14336, "num_attention_heads": 16, "num_hidden_layers": 42,
        "num_key_value_heads": 8,
    },
    "gemma2_27b": {
        **GEMMA2, "hidden_size": 4608, "intermediate_size": 36864, "num_attention_heads": 32, "num_hidden_layers": 46,
        "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 144,
    },
    "gemma3_270m": {
        **GEMMA3, "hidden_size": 640, "intermediate_size": 2048, "num_attention_heads": 4, "num_hidden_layers": 18,
        "num_key_value_heads": 1, "max_position_embeddings": 32768, "sliding_window": 512, "vocab_size": 262144,
    },
    "gemma3_1b": {
        **GEMMA3, "hidden_size": 1152, "intermediate_size": 6912, "num_attention_heads": 4, "num_hidden_layers": 26,
        "num_key_value_heads": 1, "max_position_embeddings": 32768, "sliding_window": 512, "vocab_size": 262144,
    },
    "gemma3_4b": {
        **GEMMA3, "hidden_size": 2560, "intermediate_size": 10240, "num_attention_heads": 8, "num_hidden_layers": 34,
        "num_key_value_heads": 4, "max_position_embeddings": 131072, "sliding_window": 1024, "vocab_size": 262208,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    },
    "gemma3_12b": {
        **GEMMA3, "hidden_size": 3840, "intermediate_size": 15360, "num_attention_heads": 16, "num_hidden_layers": 48,
        "num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 1024, "vocab_size": 262208,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    },
    "gemma3_27b": {
        **GEMMA3, "hidden_size": 5376, "intermediate_size": 21504, "num_attention_heads": 32, "num_hidden_layers": 62,
        "num_key_value_heads": 16, "head_dim": 128, "max_position_embeddings": 131072, "sliding_window": 1024,
        "vocab_size": 262208, "query_pre_attn_scalar": 168, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    },
    "qwen3_30b_a3b": {
        **QWEN, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_attention_heads": 32, "num_hidden_layers": 48, "num_key_value_heads": 4,
    },
    "qwen3_235b_a22b": {
        **QWEN, "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1536,
        "num_attention_heads": 64, "num_hidden_layers": 94, "num_key_value_heads": 4,
    },
    "phi3_mini_4k": {
        **PHI, "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "max_position_embeddings": 4096, "rope_theta": 10000.0, "sliding_window": 2047,
        "vocab_size": 32064,
    },
    "phi4": {
        **PHI, "hidden_size": 5120, "intermediate_size": 17920, "num_attention_heads": 40, "num_hidden_layers": 40,
        "num_key_value_heads": 10, "max_position_embeddings": 16384, "original_max_position_embeddings": 16384,
        "rope_theta": 250000, "sliding_window": None, "vocab_size": 100352,
    },
    "pythia_70m": {
        **NEOX, "hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "num_hidden_layers": 6,
    },
    "pythia_160m": {
        **NEOX, "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12,
    },
    "pythia_1_4b": {
        **NEOX, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16, "num_hidden_layers": 24,
    },
    "gpt_neox_20b": {
        **NEOX, "hidden_size": 6144, "intermediate_size": 24576, "num_attention_heads": 64, "num_hidden_layers": 44,
        "vocab_size": 50432,
    },
    "falcon_7b": {
        **FALCON, "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32, "multi_query": True,
        "new_decoder_architecture": False,
    },
    "falcon_40b": {
        **FALCON, "hidden_size": 8192, "num_attention_heads": 128, "num_hidden_layers": 60, "num_kv_heads": 8,
        "new_decoder_architecture": True,
    },
    "opt_125m": {
        **OPT, "hidden_size": 768, "ffn_dim": 3072, "num_attention_heads": 12, "num_hidden_layers": 12,
        "word_embed_proj_dim": 768,
    },
    "opt_1_3b": {
        **OPT, "hidden_size": 2048, "ffn_dim": 8192, "num_attention_heads": 32, "num_hidden_layers": 24,
        "word_embed_proj_dim": 2048,
    },
    "opt_6_7b": {
        **OPT, "hidden_size": 4096, "ffn_dim": 16384, "num_attention_heads": 32, "num_hidden_layers": 32,
        "word_embed_proj_dim": 4096,
    },
}  # fmt: skip
"""What their config.json say of sizes; of Gemma 3 from 4B on what it says of its text model."""
PUBLISHED = {
    "deepseek_v3": 671_026_419_200,
    "deepseek_v2": 235_741_434_880,
    "deepseek_v2_lite": 15_706_484_224,
    "gemma2_2b": 2_614_341_888,
    "gemma2_9b": 9_241_705_984,
    "gemma2_27b": 27_227_128_320,
    "gemma3_270m": 268_098_176,
    "gemma3_1b": 999_885_952,
    "gemma3_4b": 3_880_263_168,
    "gemma3_12b": 11_766_034_176,
    "gemma3_27b": 27_009_346_304,
    "qwen3_30b_a3b": 30_532_122_624,
    "qwen3_235b_a22b": 235_093_634_560,
    "phi3_mini_4k": 3_821_079_552,
    "phi4": 14_659_507_200,
    "pythia_70m": 70_426_624,
    "pythia_160m": 162_322_944,
    "pythia_1_4b": 1_414_647_808,
    "gpt_neox_20b": 20_554_567_680,
    "falcon_7b": 6_921_720_704,
    "falcon_40b": 41_303_293_952,
    "opt_125m": 125_239_296,
    "opt_1_3b": 1_315_758_080,
    "opt_6_7b": 6_658_473_984,
}
"""Parameters of their safetensors, tied ones once; of Gemma 3 from 4B on those of its text model, of DeepSeek-V3 those
without multi-token prediction."""


def read(fields):
    kind = families()[fields["model_type"]]
    return next(iter(kind.architectures.values())).config(Fields.of(fields))


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_number_of_parameters(name):
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(abstract(find_preset(name)()))) == PUBLISHED[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_are_what_the_published_config_says_and_are_written_so(name):
    config, kind = find_preset(name)(), FILES[name]["model_type"]
    assert read(FILES[name]) == config
    assert read(json.loads(json.dumps({"model_type": kind, **families()[kind].write(config)}))) == config
    assert from_json(json.loads(json.dumps(to_json(config)))) == config


def small(name, **changes):
    sizes = {"depth": 4, "embed": 16, "heads": 4, "head_width": 8, "inner": 20, "max_length": 32, "init_std": 0.3}
    return with_fields(find_preset(name)(31), **{**sizes, **changes})


LONG = LongScaling(factor=2.0, original_length=2, short=(1.0, 1.5), long=(2.0, 3.0))
FEW = {
    "latent": 12, "rotary_width": 4, "value_head": 6, "experts": 8, "active": 3,
    "frequencies": YarnScaling(factor=4.0, original_length=2),
}  # fmt: skip
DECODED = {
    "deepseek_v3": lambda: small("deepseek_v3", query_latent=10, groups=4, kept=2, **FEW),
    "deepseek_v2_lite": lambda: small("deepseek_v2_lite", dense_depth=0, **FEW),
    "gemma2_2b": lambda: replace(small("gemma2_2b", kv_heads=2), window=(3, None)),
    "gemma3_1b": lambda: replace(small("gemma3_1b", kv_heads=1), window=(3, 3, None)),
    "qwen3_30b_a3b": lambda: small("qwen3_30b_a3b", kv_heads=2, experts=4, active=2),
    "phi3_mini_4k": lambda: small("phi3_mini_4k", kv_heads=2, frequencies=LONG, width=4, window=None),
    "opt_125m": lambda: small("opt_125m", head_width=None, dropout=0.0),
    "pythia_70m": lambda: small("pythia_70m", width=4),
    "falcon_7b": lambda: small("falcon_7b", kv_heads=1),
    "falcon_40b": lambda: replace(
        small("falcon_40b", kv_heads=2, rotary=None), relative=AlibiConfig(scale=8**-0.5, rounded=True)
    ),
}


@pytest.mark.rotates
@pytest.mark.proves(("qwen3_moe", "phi3", "gpt_neox", "opt", "falcon"), "decode", "a token at a time as all at once")
@pytest.mark.proves("gemma", "decode", "a token at a time as all at once, windows in turns")
@pytest.mark.proves("deepseek", "decode", "a token at a time as all at once; it remembers latents alone")
@pytest.mark.parametrize("name", DECODED)
def test_steps_after_a_prompt_equal_one_pass(name):
    steps_equal_one_pass(DECODED[name]())
