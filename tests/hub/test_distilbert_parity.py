"""DistilBERT against transformers: every class, odd sizes, padding on either side, and the round trip."""

import pytest

from flax_transformer import hub
from flax_transformer.hub.family.distilbert import FAMILIES, read
from flax_transformer.hub.fields import Fields
from tests.hub.oracle import compare, compare_made, padded, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.proves("distilbert", "parity", "every class and layer")]

V = 61
CONFIGS = {
    "plain": {"dim": 24, "n_layers": 3, "n_heads": 4, "hidden_dim": 40},
    "odd": {"dim": 15, "n_layers": 1, "n_heads": 3, "hidden_dim": 22, "activation": "relu"},
    "untied": {"dim": 14, "n_layers": 2, "n_heads": 1, "hidden_dim": 9, "tie_word_embeddings": False},
    "sinusoidal": {"dim": 12, "n_layers": 2, "n_heads": 2, "hidden_dim": 9, "sinusoidal_pos_embds": True},
}
CLASSES = {
    "DistilBertModel": 2,
    "DistilBertForSequenceClassification": 5,
    "DistilBertForTokenClassification": 3,
    "DistilBertForQuestionAnswering": 2,
}


def make(kind, **options):
    torch.manual_seed(1)
    config = transformers.DistilBertConfig(vocab_size=V, max_position_embeddings=20, initializer_range=0.3, **options)
    model = getattr(transformers, kind)(config)
    with torch.no_grad():  # biases and norms, which begin at 0 and 1, shall say something too
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def batch(side="right", *, lengths=(9, 4, 1)):
    mask = padded(lengths, 9, side)
    return {"input_ids": random_ids(V, len(lengths), 9) * mask, "attention_mask": mask}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_masked_lm_equals_transformers(tmp_path, options, side):
    compare(make("DistilBertForMaskedLM", **options), tmp_path, **batch(side))


@pytest.mark.parametrize(("kind", "labels"), CLASSES.items())
def test_every_class_equals_transformers(tmp_path, kind, labels):
    options, side = ("plain", "left") if labels == 3 else ("odd", "right")
    compare(make(kind, **CONFIGS[options], num_labels=labels), tmp_path, **batch(side))


def test_multiple_choice_equals_transformers(tmp_path):
    inputs = {name: value.reshape(2, 3, 9) for name, value in batch(lengths=(9, 4, 1, 7, 9, 2)).items()}
    compare(make("DistilBertForMultipleChoice", **CONFIGS["sinusoidal"]), tmp_path, **inputs)


def test_fine_tuning_begins_from_a_pretrained_checkpoint(tmp_path):
    make("DistilBertForMaskedLM", **CONFIGS["plain"]).save_pretrained(tmp_path)
    tuned = hub.Lenient(architecture="DistilBertForSequenceClassification", initialise=("classifier",))
    assert hub.load(tmp_path, lenient=tuned)(**batch()).logits.shape == (3, 2)


@pytest.mark.parametrize("kind", ["DistilBertForMaskedLM", "DistilBertForSequenceClassification"])
def test_a_model_made_here_opens_in_transformers(tmp_path, kind):
    fields = Fields.of(make("DistilBertModel", **CONFIGS["odd"]).config.to_dict())
    config, inputs = FAMILIES["distilbert"].architectures[kind].config(fields), batch()
    compare_made(config, kind, tmp_path, **inputs)


def test_missing_fields_are_those_of_transformers():
    assert read(Fields.of({})) == read(Fields.of(transformers.DistilBertConfig().to_dict()))


def test_dropout_is_where_transformers_has_it():
    fields = Fields.of({"dropout": 0.25, "seq_classif_dropout": 0.5, "qa_dropout": 0.125})
    kinds = FAMILIES["distilbert"].architectures
    rates = [kinds[kind].config(fields).head.dropout for kind in list(CLASSES)[1:]]
    assert rates == [0.5, 0.25, 0.125]
    block = kinds["DistilBertModel"].config(fields).block
    assert (block.feedforward_residual.dropout, block.residual.dropout) == (0.25, 0)
