"""ModernBERT against transformers: classes, odd sizes, windows in any turns, biases, rotary positions, the way back."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from flax_transformer import hub
from flax_transformer.hub.family.modernbert import FAMILIES, read
from flax_transformer.hub.fields import Fields
from tests.hub.oracle import close, compare, compare_made, forward, padded, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.proves("modernbert", "parity", "every class, every layer")]

V, T = 61, 13
SMALL = {
    "vocab_size": V, "initializer_range": 0.3, "max_position_embeddings": 40, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 400.0, "factor": 4.0, "original_max_position_embeddings": 8}
CONFIGS = {
    "plain": {
        "hidden_size": 24, "num_hidden_layers": 5, "num_attention_heads": 4, "intermediate_size": 20,
        "local_attention": 4, "norm_eps": 1e-3,
    },
    "biases": {
        "hidden_size": 30, "num_hidden_layers": 4, "num_attention_heads": 5, "intermediate_size": 17,
        "local_attention": 7, "norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True,
        "decoder_bias": False, "classifier_pooling": "mean", "hidden_activation": "silu",
        "classifier_activation": "relu", "norm_eps": 0.1,
    },
    "turns": {
        "hidden_size": 18, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 22,
        "local_attention": 2, "norm_bias": True, "classifier_pooling": "mean", "tie_word_embeddings": False,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": YARN,
            "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0},
        },
    },
    "one layer": {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 9,
        "local_attention": 5, "layer_types": ["sliding_attention"], "mlp_bias": True, "classifier_bias": True,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 700.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
        },
    },
}  # fmt: skip
CLASSES = {
    "Model": ("plain", 2),
    "ForTokenClassification": ("turns", 3),
    "ForQuestionAnswering": ("biases", 2),
}


def make(kind, **options):
    torch.manual_seed(1)
    model = getattr(transformers, kind)(transformers.ModernBertConfig(**{**SMALL, **options}))
    with torch.no_grad():  # biases and norms, which begin at 0 and 1, shall say something too
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def batch(side="right", lengths=(T, 6, 2)):
    return {"input_ids": random_ids(V, len(lengths), T), "attention_mask": padded(lengths, T, side)}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_masked_lm_equals_transformers(tmp_path, options, side):
    compare(make("ModernBertForMaskedLM", **options), tmp_path, **batch(side))


@pytest.mark.parametrize(("kind", "how"), CLASSES.items())
def test_every_class_equals_transformers(tmp_path, kind, how):
    name, labels = how
    compare(make(f"ModernBert{kind}", **CONFIGS[name], num_labels=labels), tmp_path, **batch())


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["plain", "biases"])
def test_either_pooling_of_a_text_equals_transformers(tmp_path, name, side):
    compare(make("ModernBertForSequenceClassification", **CONFIGS[name], num_labels=4), tmp_path, **batch(side))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["plain", "turns"])
def test_multiple_choice_equals_transformers(tmp_path, name, side):
    inputs = batch(side, (T, 4, 1, 7, T, 2))
    inputs = {name: value.reshape(2, 3, T) for name, value in inputs.items()}
    compare(make("ModernBertForMultipleChoice", **CONFIGS[name]), tmp_path, **inputs)


def test_attention_weights_are_those_of_every_layer_in_order(tmp_path):
    model, inputs = make("ModernBertModel", **CONFIGS["plain"]).eval(), batch()
    model.save_pretrained(tmp_path)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**{n: torch.tensor(x) for n, x in inputs.items()}, output_attentions=True).attentions
    got = hub.load(tmp_path)(**inputs, output_attentions=True).attentions
    assert len(got) == len(expected) == 5
    real = inputs["attention_mask"] != 0
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_allclose(np.moveaxis(a.numpy(), 1, 2)[real], np.moveaxis(b, 1, 2)[real], atol=1e-5)


def test_positions_that_are_given_are_used(tmp_path):
    positions = np.array([[5, 3, 8, 1, 2, 0, 19]])
    compare(
        make("ModernBertModel", **CONFIGS["plain"]), tmp_path, input_ids=random_ids(V, 2, 7), position_ids=positions
    )


def test_a_config_of_before_transformers_5_is_read(tmp_path):
    """As published: turns as a number, two bases, and fields of flash attention, which say nothing here."""
    options = {**CONFIGS["plain"], "layer_types": [("sliding" if i % 2 else "full") + "_attention" for i in range(5)]}
    rotary = {"full_attention": {"rope_theta": 900.0}, "sliding_attention": {"rope_theta": 40.0}}
    scaled = {kind: {**each, "rope_type": "linear", "factor": 3.0} for kind, each in rotary.items()}
    model = make("ModernBertForMaskedLM", **options, rope_parameters=scaled).eval()
    model.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    said = {name: value for name, value in said.items() if name not in ("layer_types", "rope_parameters")}
    said |= {
        "global_attn_every_n_layers": 2, "global_rope_theta": 900.0, "local_rope_theta": 40.0, "rope_scaling":
        {"rope_type": "linear", "factor": 3.0}, "reference_compile": None, "repad_logits_with_grad": False,
        "deterministic_flash_attn": False, "position_embedding_type": "absolute",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(said))
    inputs = batch()
    ours = hub.load(tmp_path)
    close("logits", forward(model, inputs)["logits"], ours(**inputs).logits, inputs)
    assert hub.wrap(ours.model, "ModernBertForMaskedLM").config["rope_scaling"] == {
        "rope_type": "linear",
        "factor": 3.0,
    }
    hub.save(ours, tmp_path / "back")
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "back").eval()
    np.testing.assert_array_equal(forward(model, inputs)["logits"], forward(again, inputs)["logits"])


def test_a_pretrained_model_begins_a_classifier_with_its_head(tmp_path):
    model = make("ModernBertForMaskedLM", **CONFIGS["biases"])
    model.save_pretrained(tmp_path)
    how = hub.Lenient(architecture="ModernBertForSequenceClassification", initialise=("^classifier",))
    ours = hub.load(tmp_path, lenient=how)
    np.testing.assert_array_equal(ours.model.head.dense.kernel[...], model.head.dense.weight.detach().numpy().T)
    assert hub.load(tmp_path, lenient=hub.Lenient(architecture="ModernBertModel"))(**batch()).last_hidden_state.shape


@pytest.mark.parametrize(("kind", "name"), [("ForMaskedLM", "turns"), ("ForSequenceClassification", "one layer")])
def test_a_model_made_here_opens_in_transformers(tmp_path, kind, name):
    kind = f"ModernBert{kind}"
    fields = Fields.of(make("ModernBertModel", **CONFIGS[name]).config.to_dict())
    config, inputs = FAMILIES["modernbert"].architectures[kind].config(fields), batch()
    compare_made(config, kind, tmp_path, **inputs)
    assert not [name for name in load_file(tmp_path / "model.safetensors") if "layers.0.attn_norm" in name]


def test_missing_fields_are_those_of_transformers():
    assert read(Fields.of({})) == read(Fields.of(transformers.ModernBertConfig().to_dict()))


def test_what_is_not_supported_is_refused(tmp_path):
    make("ModernBertModel", **CONFIGS["plain"]).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="got token_type_ids"):
        hub.load(tmp_path)(**batch(), token_type_ids=np.zeros((3, T), int))
    how = Fields.of({"classifier_pooling": "max"})
    with pytest.raises(ValueError, match="classifier_pooling='max'; supported are cls, mean"):
        FAMILIES["modernbert"].architectures["ModernBertForSequenceClassification"].config(how)
