"""Qwen3-MoE, Phi-3, GPT-NeoX, OPT and Falcon against transformers: every class, odd sizes, and the way back."""

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.registry import find_architecture
from tests.hub import decoder_case
from tests.hub.decoder_case import SMALL, make

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves(("qwen3_moe", "phi3", "gpt_neox", "opt", "falcon"), "parity", "every class and layer"),
]

MOE = {
    "num_key_value_heads": 2, "moe_intermediate_size": 20, "num_experts": 5, "num_experts_per_tok": 2, "head_dim": 8,
}  # fmt: skip
PHI = {"num_key_value_heads": 2, "eos_token_id": 2}
ROUND = {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.35}}
LONG = {
    "rope_type": "longrope", "rope_theta": 300.0, "short_factor": [1.0, 1.5], "long_factor": [2.0, 4.5],
    "partial_rotary_factor": 0.7,
}  # fmt: skip
CASES = {
    "qwen3_moe": ("Qwen3Moe", {**MOE, "norm_topk_prob": True}),
    "qwen3_moe, probabilities": ("Qwen3Moe", {**MOE, "num_experts_per_tok": 3, "attention_bias": True}),
    "qwen3_moe, windows": (
        "Qwen3Moe",
        {**MOE, "use_sliding_window": True, "sliding_window": 3, "tie_word_embeddings": True, "vocab_size": 77},
    ),
    "qwen3_moe, 3 heads": (
        "Qwen3Moe",
        {
            **MOE, "hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 3, "num_hidden_layers": 1,
            "rms_norm_eps": 0.1, "hidden_act": "gelu", "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
        },
    ),
    "phi3": ("Phi3", {**PHI, "sliding_window": 3}),
    "phi3, tied": ("Phi3", {**PHI, "tie_word_embeddings": True, "num_key_value_heads": 4, "vocab_size": 67}),
    "phi3, short": (
        "Phi3", {**PHI, "rope_parameters": LONG, "original_max_position_embeddings": 12, "rms_norm_eps": 0.1},
    ),
    "phi3, long": ("Phi3", {**PHI, "rope_parameters": LONG, "original_max_position_embeddings": 6}),
    "phi3, part of a head": (
        "Phi3",
        {
            **PHI, "hidden_size": 40, "num_attention_heads": 5, "num_key_value_heads": 1, "num_hidden_layers": 1,
            "hidden_act": "gelu_pytorch_tanh",
            "rope_parameters": {"rope_type": "default", "rope_theta": 70.0, "partial_rotary_factor": 0.5},
        },
    ),
    "gpt_neox": ("GPTNeoX", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.4}}),
    "gpt_neox, one after another": (
        "GPTNeoX",
        {
            "use_parallel_residual": False, "tie_word_embeddings": True, "attention_bias": False, "vocab_size": 67,
            "rope_parameters": {"rope_type": "default", "rope_theta": 90.0, "partial_rotary_factor": 1.0},
        },
    ),
    "gpt_neox, 3 heads": (
        "GPTNeoX",
        {
            "hidden_size": 30, "num_attention_heads": 3, "num_hidden_layers": 1, "hidden_act": "gelu_new",
            "layer_norm_eps": 0.1,
            "rope_parameters": {
                "rope_type": "linear", "factor": 2.0, "rope_theta": 90.0, "partial_rotary_factor": 0.2,
            },
        },
    ),
    "gpt_neox, 2 heads": ("GPTNeoX", {**ROUND, "num_attention_heads": 2, "hidden_act": "relu", "num_hidden_layers": 3}),
    "falcon": ("Falcon", {"ffn_hidden_size": 36}),
    "falcon, new": ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True, "vocab_size": 67}),
    "falcon, new, one norm": (
        "Falcon",
        {
            "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1, "hidden_size": 36, "num_attention_heads": 6,
            "num_kv_heads": 3, "tie_word_embeddings": False, "num_hidden_layers": 3, "layer_norm_epsilon": 0.1,
        },
    ),
    "falcon, alibi": ("Falcon", {"alibi": True, "multi_query": False, "bias": True, "activation": "relu"}),
    "falcon, alibi, one after another": (
        "Falcon",
        {
            "alibi": True, "parallel_attn": False, "multi_query": False, "hidden_size": 48, "num_attention_heads": 8,
            "num_hidden_layers": 1, "ffn_hidden_size": None,
        },
    ),
    "falcon, one after another": (
        "Falcon",
        {
            "parallel_attn": False, "bias": True, "hidden_size": 30, "num_attention_heads": 3,
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 90.0},
        },
    ),
    "opt": ("OPT", {"ffn_dim": 36}),
    "opt, untied": ("OPT", {"ffn_dim": 20, "tie_word_embeddings": False, "vocab_size": 67, "pad_token_id": 5}),
    "opt, norms after": ("OPT", {"ffn_dim": 24, "do_layer_norm_before": False, "activation_function": "gelu"}),
    "opt, 3 heads": (
        "OPT",
        {
            "hidden_size": 30, "num_attention_heads": 3, "num_hidden_layers": 3, "ffn_dim": 17, "enable_bias": False,
            "max_position_embeddings": 9,
        },
    ),
}  # fmt: skip


def config_of(case):
    name, options = CASES[case]
    return getattr(transformers, f"{name}Config")(**{**SMALL, **options}), f"{name}ForCausalLM"


@pytest.mark.parametrize("case", CASES)
def test_language_model_equals_transformers(tmp_path, case):
    config, name = config_of(case)
    decoder_case.language_model_is_the_same(make(name, config), tmp_path)


@pytest.mark.parametrize("heads", [6, 5])
def test_slopes_of_falcon_are_rounded_as_in_transformers(tmp_path, heads):
    """Of heads that are no power of two, over positions that bfloat16 does not tell apart."""
    options = {**SMALL, "alibi": True, "multi_query": False, "hidden_size": 8 * heads, "num_attention_heads": heads}
    model = make("FalconForCausalLM", transformers.FalconConfig(**options))
    model.save_pretrained(tmp_path)
    ids = np.random.default_rng(0).integers(3, 50, (2, 400))
    seen = np.ones_like(ids)
    seen[1, 350:] = 0
    with torch.no_grad():
        expected = model(torch.tensor(ids), attention_mask=torch.tensor(seen)).logits.numpy()
    found = hub.load(tmp_path)(input_ids=ids, attention_mask=seen).logits
    np.testing.assert_allclose(found[seen == 1], expected[seen == 1], atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("case", "kinds"),
    [
        ("qwen3_moe", ["Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]),
        ("phi3", ["Model", "ForSequenceClassification", "ForTokenClassification"]),
        ("opt", ["Model", "ForSequenceClassification", "ForQuestionAnswering"]),
        ("falcon", ["Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]),
        ("gpt_neox", ["Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]),
    ],
)
def test_every_class_equals_transformers(tmp_path, case, kinds):
    for kind in kinds:
        config, name = config_of(case)
        config.num_labels = 2 if "Question" in kind else 3
        decoder_case.class_is_the_same(make(name.replace("ForCausalLM", kind), config), tmp_path / kind)


@pytest.mark.rotates
@pytest.mark.parametrize(
    "case",
    ["qwen3_moe", "phi3", "gpt_neox", "opt", "falcon", "falcon, new", "falcon, alibi", "falcon, one after another"],
)
def test_generation_equals_transformers(tmp_path, case):
    config, name = config_of(case)
    decoder_case.generates_the_same(make(name, config), tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_a_model_made_here_opens_in_transformers(tmp_path, case):
    config, name = config_of(case)
    decoder_case.opens_in_transformers(name, config, tmp_path)


@pytest.mark.parametrize(
    ("name", "fields", "match"),
    [
        ("Qwen3MoeForCausalLM", {"decoder_sparse_step": 2}, "decoder_sparse_step=2, .* experts in all layers"),
        (
            "Qwen3MoeForCausalLM",
            {"mlp_only_layers": [0]},
            r"mlp_only_layers=\[0\]; supported are experts in",
        ),
        ("OPTForCausalLM", {"word_embed_proj_dim": 12}, "word_embed_proj_dim=12, of which only hidden_size=24 is"),
        ("OPTForCausalLM", {"_remove_final_layer_norm": True}, "of which only False is supported"),
        ("Phi3ForCausalLM", {"rope_scaling": {"type": "linear", "factor": 2}}, "rope type default or longrope, it has"),
        ("Phi3ForCausalLM", {"rope_scaling": {"type": "su", "short_factor": 1}}, "short_factor as a list of numbers"),
    ],
)
def test_what_is_not_supported_is_refused(name, fields, match):
    with pytest.raises(ValueError, match=match):
        find_architecture(name)[1].config(Fields.of({**SMALL, **fields}))
