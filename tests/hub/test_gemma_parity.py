"""Gemma 2 and the text models of Gemma 3 against transformers: classes, odd sizes, turns of layers, the way back."""

import json

import pytest

from flax_transformer import hub
from flax_transformer.hub.family.gemma import FAMILIES
from flax_transformer.hub.fields import Fields
from tests.hub import decoder_case
from tests.hub.decoder_case import SMALL, make
from tests.hub.oracle import close, forward, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.proves("gemma", "parity", "every class and layer")]

KINDS = {"gemma2": ("Gemma2Config", "Gemma2ForCausalLM"), "gemma3_text": ("Gemma3TextConfig", "Gemma3ForCausalLM")}
FEW = {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 3, "rms_norm_eps": 1e-3}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 900.0}
CASES = {
    "gemma2": (
        "gemma2", {**FEW, "num_hidden_layers": 3, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma2, no caps": (
        "gemma2",
        {
            **FEW, "num_key_value_heads": 1, "head_dim": 10, "attn_logit_softcapping": None, "attention_bias": True,
            "final_logit_softcapping": None, "query_pre_attn_scalar": 12, "tie_word_embeddings": False,
            "layer_types": ["full_attention", "full_attention"],
        },
    ),
    "gemma2, 5 heads": (
        "gemma2",
        {
            **FEW, "hidden_size": 30, "num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 6,
            "vocab_size": 77, "hidden_activation": "silu", "rope_parameters": LINEAR, "query_pre_attn_scalar": 144,
        },
    ),
    "gemma2, other turns": (
        "gemma2", {**FEW, "num_hidden_layers": 3, "layer_types": ["full_attention", *["sliding_attention"] * 2]},
    ),
    "gemma3": ("gemma3_text", {**FEW, "num_hidden_layers": 7}),
    "gemma3, scaled": (
        "gemma3_text",
        {
            **FEW, "layer_types": ["full_attention", "sliding_attention"], "final_logit_softcapping": 2.0,
            "rope_parameters": {
                "full_attention": LINEAR, "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
    ),
    "gemma3, one kind of layer": (
        "gemma3_text",
        {
            **FEW, "layer_types": ["sliding_attention"] * 2, "num_key_value_heads": 4, "query_pre_attn_scalar": 17,
            "attention_bias": True, "tie_word_embeddings": False,
        },
    ),
    "gemma3, 3 heads": (
        "gemma3_text",
        {
            **FEW, "hidden_size": 27, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 12,
            "vocab_size": 67, "num_hidden_layers": 3, "layer_types": ["full_attention"] * 3,
            "hidden_activation": "gelu",
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn", "rope_theta": 400.0, "factor": 4.0, "original_max_position_embeddings": 8,
                },
                "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0},
            },
        },
    ),
}  # fmt: skip


def config_of(case):
    kind, options = CASES[case]
    return getattr(transformers, KINDS[kind][0])(**{**SMALL, **options}), KINDS[kind][1]


@pytest.mark.parametrize("case", CASES)
def test_language_model_equals_transformers(tmp_path, case):
    config, name = config_of(case)
    decoder_case.language_model_is_the_same(make(name, config), tmp_path)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("Gemma2Model", "gemma2"), ("Gemma2ForSequenceClassification", "gemma2, other turns"),
        ("Gemma2ForTokenClassification", "gemma2"), ("Gemma3TextModel", "gemma3, scaled"),
        ("Gemma3TextForSequenceClassification", "gemma3, scaled"),
    ],
)  # fmt: skip
def test_every_class_equals_transformers(tmp_path, name, case):
    config, _ = config_of(case)
    config.num_labels = 3
    decoder_case.class_is_the_same(make(name, config), tmp_path)


@pytest.mark.parametrize("case", ["gemma2", "gemma3"])
def test_generation_equals_transformers(tmp_path, case):
    config, name = config_of(case)
    decoder_case.generates_the_same(make(name, config), tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_a_model_made_here_opens_in_transformers(tmp_path, case):
    config, name = config_of(case)
    decoder_case.opens_in_transformers(name, config, tmp_path)


@pytest.mark.parametrize(
    ("case", "fields"),
    [
        ("gemma2", {"rope_theta": 700.0, "layer_types": ...}),
        (
            "gemma3",
            {
                "rope_theta": 700.0, "rope_local_base_freq": 30.0, "layer_types": ..., "sliding_window_pattern": 3,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "_sliding_window_pattern": ...,
            },
        ),
        ("gemma3", {"layer_types": ..., "head_dim": 8, "_sliding_window_pattern": ...}),
    ],
)  # fmt: skip
def test_config_files_of_older_versions(tmp_path, case, fields):
    config, name = config_of(case)
    make(name, config).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    said = json.loads(path.read_text())
    del said["rope_parameters"]
    path.write_text(json.dumps({key: value for key, value in (said | fields).items() if value is not ...}))
    theirs = getattr(transformers, name).from_pretrained(tmp_path).eval()
    ids = random_ids(61, 2, 9)
    close("logits", forward(theirs, {"input_ids": ids})["logits"], hub.load(tmp_path)(input_ids=ids).logits, {})


@pytest.mark.parametrize(
    ("kind", "fields", "match"),
    [
        ("gemma2", {"use_bidirectional_attention": True}, "of which only false is supported"),
        ("gemma2", {"layer_types": ["chunked_attention"] * 2}, r"layer_types as 2 of full_attention and sliding_"),
        ("gemma2", {"sliding_window": None}, "sliding_window where layers are sliding_attention, it is None"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, r"attn_logit_softcapping=50\.0, of which only None"),
        ("gemma3_text", {"rope_parameters": {"rope_theta": 1.0}}, "rotary parameters of full_attention and sliding_"),
        (
            "gemma3_text", {"rope_parameters": {"full_attention": {"rope_type": "spiral"}}},
            "rope type 'spiral'; supported are default, ",
        ),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused(kind, fields, match):
    read = FAMILIES[kind].architectures[KINDS[kind][1]].config
    with pytest.raises(ValueError, match=match):
        read(Fields.of({**SMALL, **fields}))
