"""ELECTRA against transformers: every class, tables narrower than the model, padding on either side, the round trip."""

from dataclasses import replace

import pytest

from flax_transformer import hub
from flax_transformer.hub.family.electra import FAMILIES, read
from flax_transformer.hub.fields import Fields
from tests.hub.oracle import compare, compare_made, padded, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("electra", "parity", "every class but `ElectraForCausalLM`, every layer"),
]

V = 61
CONFIGS = {
    "same": {
        "embedding_size": 16, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 20,
    },
    "narrow": {
        "embedding_size": 7, "hidden_size": 15, "num_hidden_layers": 1, "num_attention_heads": 3,
        "intermediate_size": 22, "hidden_act": "relu", "layer_norm_eps": 0.1, "type_vocab_size": 3,
    },
    "wide": {
        "embedding_size": 20, "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 1,
        "intermediate_size": 9, "tie_word_embeddings": False, "summary_activation": "tanh",
    },
}  # fmt: skip
CLASSES = {
    "ElectraModel": 2,
    "ElectraForPreTraining": 2,
    "ElectraForSequenceClassification": 5,
    "ElectraForTokenClassification": 3,
    "ElectraForQuestionAnswering": 2,
}


def make(kind, **options):
    torch.manual_seed(1)
    config = transformers.ElectraConfig(vocab_size=V, max_position_embeddings=20, initializer_range=0.3, **options)
    model = getattr(transformers, kind)(config)
    with torch.no_grad():  # biases and norms, which begin at 0 and 1, shall say something too
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def batch(side="right", *, lengths=(9, 4, 1)):
    mask = padded(lengths, 9, side)
    types = random_ids(2, len(lengths), 9, low=0)
    return {"input_ids": random_ids(V, len(lengths), 9) * mask, "attention_mask": mask, "token_type_ids": types}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_generator_equals_transformers(tmp_path, options, side):
    compare(make("ElectraForMaskedLM", **options), tmp_path, **batch(side))


@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize(("kind", "labels"), CLASSES.items())
def test_every_class_equals_transformers(tmp_path, kind, labels, options):
    compare(make(kind, **options, num_labels=labels), tmp_path, **batch("left"))


@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_multiple_choice_equals_transformers(tmp_path, options):
    inputs = {name: value.reshape(2, 3, 9) for name, value in batch(lengths=(9, 4, 1, 7, 9, 2)).items()}
    compare(make("ElectraForMultipleChoice", **options), tmp_path, **inputs)


@pytest.mark.parametrize("kind", ["ElectraForPreTraining", "ElectraForMaskedLM"])
def test_fine_tuning_begins_from_a_published_checkpoint(tmp_path, kind):
    make(kind, **CONFIGS["narrow"]).save_pretrained(tmp_path)
    tuned = hub.Lenient(
        architecture="ElectraForSequenceClassification", initialise=("^classifier",), config={"num_labels": 4}
    )
    assert hub.load(tmp_path, lenient=tuned)(**batch()).logits.shape == (3, 4)


@pytest.mark.parametrize("kind", ["ElectraForPreTraining", "ElectraForMaskedLM", "ElectraForMultipleChoice"])
def test_a_model_made_here_opens_in_transformers(tmp_path, kind):
    fields = Fields.of(make("ElectraModel", **CONFIGS["narrow"]).config.to_dict())
    config, inputs = FAMILIES["electra"].architectures[kind].config(fields), batch()
    if kind.endswith("Choice"):
        inputs = {name: value[None] for name, value in inputs.items()}
    compare_made(config, kind, tmp_path, **inputs)


def test_missing_fields_are_those_of_transformers():
    assert read(Fields.of({})) == read(Fields.of(transformers.ElectraConfig().to_dict()))


@pytest.mark.parametrize(("field", "value"), [("summary_type", "mean"), ("summary_use_proj", False)])
def test_a_summary_that_is_not_supported_is_named(field, value):
    with pytest.raises(ValueError, match=f"{field}={value!r}"):
        FAMILIES["electra"].architectures["ElectraForMultipleChoice"].config(Fields.of({field: value}))


def test_tables_of_another_width_need_a_projection():
    config = read(Fields.of(CONFIGS["narrow"]))
    with pytest.raises(ValueError, match="all parts must have one model width, got embedding=7, block=15"):
        replace(config, embedding=replace(config.embedding, project=None))
