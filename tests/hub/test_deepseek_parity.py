"""DeepSeek-V3 and V2 against transformers: every class, odd sizes, queries with and without latents, and back."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flax_transformer import hub
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.registry import find_architecture
from tests.hub import decoder_case
from tests.hub.decoder_case import SMALL

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("deepseek", "parity", "every class and layer"),
]

COMMON = {
    **SMALL, "num_hidden_layers": 3, "num_key_value_heads": 4, "first_k_dense_replace": 1, "kv_lora_rank": 12,
    "q_lora_rank": 10, "qk_nope_head_dim": 5, "qk_rope_head_dim": 6, "v_head_dim": 7, "moe_intermediate_size": 20,
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 8, "mscale": 0.8,
    "mscale_all_dim": 0.6,
}  # fmt: skip
CASES = {
    "groups": ("DeepseekV3", {"n_shared_experts": 2, "routed_scaling_factor": 1.7}),
    "whole queries, no dense layer": (
        "DeepseekV3",
        {
            "q_lora_rank": None, "attention_bias": True, "rope_interleave": False, "first_k_dense_replace": 0,
            "n_group": 1, "topk_group": 1, "n_routed_experts": 5, "num_experts_per_tok": 2, "norm_topk_prob": False,
            "tie_word_embeddings": True, "num_hidden_layers": 2,
        },
    ),
    "3 heads, YaRN": (
        "DeepseekV3",
        {
            "hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 3, "first_k_dense_replace": 2,
            "rope_parameters": YARN, "vocab_size": 67, "hidden_act": "gelu", "n_group": 2, "topk_group": 1,
            "rms_norm_eps": 0.1,
        },
    ),
    "wide values": (
        "DeepseekV3",
        {
            "v_head_dim": 14, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "kv_lora_rank": 5, "topk_group": 4,
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0, "mscale_all_dim": 1.3},
        },
    ),
    "v2": (
        "DeepseekV2",
        {"n_shared_experts": 1, "routed_scaling_factor": 0.9, "topk_method": "greedy", "qk_nope_head_dim": 8},
    ),
    "v2, groups": (
        "DeepseekV2",
        {
            "q_lora_rank": None, "topk_method": "group_limited_greedy", "rope_parameters": YARN, "vocab_size": 67,
            "attention_bias": True, "first_k_dense_replace": 2, "qk_nope_head_dim": 4,
        },
    ),
}  # fmt: skip


def make(name, config):
    """Make a model of transformers whose experts are corrected."""
    model = decoder_case.make(name, config)
    for key, buffer in model.named_buffers():
        if key.endswith("e_score_correction_bias"):
            buffer.add_(0.3 * torch.randn(buffer.shape))
    return model


def config_of(case):
    name, options = CASES[case]
    return getattr(transformers, f"{name}Config")(**{**COMMON, **options}), f"{name}ForCausalLM"


@pytest.mark.parametrize("case", CASES)
def test_language_model_equals_transformers(tmp_path, case):
    config, name = config_of(case)
    decoder_case.language_model_is_the_same(make(name, config), tmp_path)


@pytest.mark.parametrize(
    ("case", "kinds"),
    [
        ("groups", ["Model", "ForSequenceClassification", "ForTokenClassification"]),
        ("v2", ["Model", "ForSequenceClassification"]),
    ],
)
def test_every_class_equals_transformers(tmp_path, case, kinds):
    for kind in kinds:
        config, name = config_of(case)
        config.num_labels = 3
        decoder_case.class_is_the_same(make(name.replace("ForCausalLM", kind), config), tmp_path / kind)


@pytest.mark.rotates
@pytest.mark.parametrize("case", ["groups", "3 heads, YaRN", "wide values", "v2, groups"])
def test_generation_equals_transformers(tmp_path, case):
    config, name = config_of(case)
    decoder_case.generates_the_same(make(name, config), tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_a_model_made_here_opens_in_transformers(tmp_path, case):
    config, name = config_of(case)
    decoder_case.opens_in_transformers(name, config, tmp_path)


def test_a_layer_of_multi_token_prediction_is_not_read_and_comes_back(tmp_path):
    config, name = config_of("groups")
    make(name, config).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    more = {f"model.layers.61.{part}": np.ones((2, 3), np.float32) for part in ("eh_proj.weight", "mlp.gate.weight")}
    save_file({**tensors, **more}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    hub.save(hub.load(tmp_path), tmp_path / "again")
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert again.keys() == {*tensors, *more}
    for key, value in {**tensors, **more}.items():
        np.testing.assert_array_equal(again[key], value)


@pytest.mark.parametrize(
    ("name", "fields", "match"),
    [
        ("DeepseekV3ForCausalLM", {"first_k_dense_replace": 3}, "first_k_dense_replace=3 of num_hidden_layers=3"),
        ("DeepseekV3ForCausalLM", {"scoring_func": "softmax"}, "of which only 'sigmoid' is supported"),
        ("DeepseekV3ForCausalLM", {"n_group": 3}, "groups must divide the experts, .* got E=8, groups=3"),
        ("DeepseekV3ForCausalLM", {"num_experts_per_tok": 5}, "1 to 4 experts, those of 2 groups, got 5"),
        ("DeepseekV2ForCausalLM", {"topk_method": "noaux_tc"}, "topk_method='noaux_tc'; supported are greedy"),
        ("DeepseekV2ForCausalLM", {"norm_topk_prob": True}, "of which only False is supported"),
    ],
)
def test_what_is_not_supported_is_refused(name, fields, match):
    with pytest.raises(ValueError, match=match):
        find_architecture(name)[1].config(Fields.of({**COMMON, **fields}))
