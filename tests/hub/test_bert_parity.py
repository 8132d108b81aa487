"""BERT against transformers: every class, odd sizes, padding on either side, old names, and the round trip."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flax_transformer import hub
from flax_transformer.hub.family.bert import FAMILIES, read
from flax_transformer.hub.fields import Fields
from tests.hub.oracle import close, compare, compare_made, forward, padded, random_ids, same_tensors

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("bert", "parity", "every class but `BertLMHeadModel`, every layer"),
]

V = 61
CONFIGS = {
    "plain": {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40},
    "odd": {
        "hidden_size": 15, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 22,
        "hidden_act": "relu", "type_vocab_size": 3,
    },
    "eps": {
        "hidden_size": 14, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 9,
        "hidden_act": "gelu_new", "layer_norm_eps": 0.1, "max_position_embeddings": 9,
    },
}  # fmt: skip
CLASSES = {
    "BertModel": 2,
    "BertForPreTraining": 2,
    "BertForNextSentencePrediction": 2,
    "BertForSequenceClassification": 5,
    "BertForTokenClassification": 3,
    "BertForQuestionAnswering": 2,
}


def make(kind, **options):
    torch.manual_seed(1)
    config = transformers.BertConfig(
        **{"vocab_size": V, "max_position_embeddings": 20, "initializer_range": 0.3, **options}
    )
    return shaken(getattr(transformers, kind)(config))


def shaken(model):
    """Let biases and norms, which begin at 0 and 1, say something too."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def batch(side="right", *, shape=(3, 9), lengths=(9, 4, 1)):
    ids, types = random_ids(V, *shape), random_ids(2, *shape, low=0)
    mask = padded(lengths, shape[1], side)
    return {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": types}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_masked_lm_equals_transformers(tmp_path, options, side):
    compare(make("BertForMaskedLM", **options), tmp_path, **batch(side))


def test_ids_alone_are_all_seen_and_of_the_first_type(tmp_path):
    compare(make("BertForMaskedLM", **CONFIGS["odd"]), tmp_path, input_ids=random_ids(V, 2, 7))


@pytest.mark.parametrize(("kind", "labels"), CLASSES.items())
def test_every_class_equals_transformers(tmp_path, kind, labels):
    options, side = ("eps", "left") if labels > 2 else ("odd", "right")
    compare(make(kind, **CONFIGS[options], num_labels=labels), tmp_path, **batch(side))


def test_multiple_choice_equals_transformers(tmp_path):
    flat = batch(shape=(6, 9), lengths=(9, 4, 1, 7, 9, 2))
    inputs = {name: value.reshape(2, 3, 9) for name, value in flat.items()}
    compare(make("BertForMultipleChoice", **CONFIGS["odd"]), tmp_path, **inputs)


def test_positions_that_are_given_are_used(tmp_path):
    positions = np.array([[5, 3, 8, 1, 2, 0, 19]])
    compare(make("BertModel", **CONFIGS["plain"]), tmp_path, input_ids=random_ids(V, 2, 7), position_ids=positions)


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "BertForPreTraining"])
def test_an_untied_output_layer_equals_transformers(tmp_path, kind):
    """Beside it transformers keeps a bias that it never reads; files with it load, files without it too."""
    model = make(kind, **CONFIGS["plain"], tie_word_embeddings=False).eval()
    inputs = batch()
    model.save_pretrained(tmp_path / "whole")
    found = hub.load(tmp_path / "whole")(**inputs)
    for name, value in forward(model, inputs).items():
        if name in found.keys():  # noqa: SIM118
            close(name, value, found[name], inputs)
    del model.cls.predictions.bias
    compare(model, tmp_path, **inputs)


def test_a_published_checkpoint_loads_with_its_old_names_and_what_else_it_has(tmp_path):
    """bert-base-uncased has the tensors of BertForPreTraining under the names of 2018, and is a BertForMaskedLM."""
    model = make("BertForPreTraining", **CONFIGS["plain"]).eval()
    model.save_pretrained(tmp_path / "new")
    masked = transformers.BertForMaskedLM.from_pretrained(tmp_path / "new")
    masked.eval().save_pretrained(tmp_path / "old")
    tensors = load_file(tmp_path / "new" / "model.safetensors")
    tensors["bert.embeddings.position_ids"] = np.arange(20)[None]
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].copy()
    tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, name in [(new, name) for new in old for name in list(tensors) if name.endswith(new)]:
        tensors[name.replace(new, old[new])] = tensors.pop(name)
    assert sum(name.endswith("gamma") for name in tensors) == 8
    save_file(tensors, tmp_path / "old" / "model.safetensors")
    inputs = batch()
    close("logits", forward(masked, inputs)["logits"], hub.load(tmp_path / "old")(**inputs).logits, inputs)
    tensors["cls.predictions.decoder.weight"] += 1
    save_file(tensors, tmp_path / "old" / "model.safetensors")
    with pytest.raises(ValueError, match=r"not a copy: cls\.predictions\.decoder\.weight must equal bert\.embeddings"):
        hub.load(tmp_path / "old")


def test_fine_tuning_begins_from_a_pretrained_checkpoint(tmp_path):
    make("BertForPreTraining", **CONFIGS["plain"]).save_pretrained(tmp_path)
    lenient = hub.Lenient(
        architecture="BertForSequenceClassification", initialise=("^classifier",), config={"num_labels": 5}
    )
    assert hub.load(tmp_path, lenient=lenient)(**batch()).logits.shape == (3, 5)
    base = hub.load(tmp_path, lenient=hub.Lenient(architecture="BertModel"))
    same = hub.load(tmp_path)
    np.testing.assert_array_equal(base(**batch()).last_hidden_state, same(**batch()).last_hidden_state)
    with pytest.raises(ValueError, match=r"2 differences\n  missing: classifier\.weight"):
        hub.load(tmp_path, lenient=replace(lenient, initialise=()))


@pytest.mark.parametrize("kind", ["BertModel", "BertForPreTraining"])
def test_a_model_made_here_opens_in_transformers(tmp_path, kind):
    fields = Fields.of(make("BertModel", **CONFIGS["odd"]).config.to_dict())
    config, inputs = FAMILIES["bert"].architectures[kind].config(fields), batch()
    compare_made(config, kind, tmp_path, **inputs)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_checkpoints_stay_so(tmp_path, dtype):
    make("BertForPreTraining", **CONFIGS["plain"]).to(getattr(torch, dtype)).save_pretrained(tmp_path / "theirs")
    ours = hub.load(tmp_path / "theirs")
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(ours.model)} == {dtype}
    hub.save(ours, tmp_path / "back")
    same_tensors(tmp_path / "theirs", tmp_path / "back")
    output = ours(**batch())
    assert (str(output.last_hidden_state.dtype), str(output.seq_relationship_logits.dtype)) == (dtype, "float32")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("position_embedding_type", "relative_key"),
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("hidden_act", "mish"),
        ("hidden_size", None),
    ],
)
def test_unsupported_options_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        read(Fields.of({field: value}))


def test_missing_fields_are_those_of_transformers():
    assert read(Fields.of({})) == read(Fields.of(transformers.BertConfig().to_dict()))


def test_dropout_is_where_transformers_has_it():
    fields = Fields.of({"hidden_dropout_prob": 0.25, "classifier_dropout": 0.5})
    kinds = FAMILIES["bert"].architectures
    assert kinds["BertForSequenceClassification"].config(fields).head.dropout == 0.5
    assert kinds["BertForTokenClassification"].config(Fields.of({"hidden_dropout_prob": 0.25})).head.dropout == 0.25
    assert kinds["BertForQuestionAnswering"].config(fields).head.dropout == 0
