"""MPNet against transformers: every class, positions by ids, distances of every bucket, padding on either side."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flax_transformer import hub
from flax_transformer.hub.family.mpnet import FAMILIES, read
from flax_transformer.hub.fields import Fields
from tests.hub.oracle import close, compare, compare_made, forward, padded, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.proves("mpnet", "parity", "every class, every layer")]

V = 61
CONFIGS = {
    "plain": {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40},
    "odd": {
        "hidden_size": 15, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 22,
        "hidden_act": "relu",
    },
    "eps": {
        "hidden_size": 14, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 9,
        "layer_norm_eps": 0.1, "max_position_embeddings": 12,
    },
}  # fmt: skip
CLASSES = {
    "Model": ("odd", 2),
    "ForSequenceClassification": ("eps", 5),
    "ForTokenClassification": ("eps", 3),
    "ForQuestionAnswering": ("odd", 2),
}


def make(kind, **options):
    torch.manual_seed(1)
    config = transformers.MPNetConfig(
        **{"vocab_size": V, "max_position_embeddings": 20, "initializer_range": 0.3, **options}
    )
    model = getattr(transformers, kind)(config)
    with torch.no_grad():  # biases and norms, which begin at 0 and 1, shall say something too
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def batch(side="right", *, lengths=(9, 4, 1)):
    mask = padded(lengths, 9, side)
    return {"input_ids": np.where(mask, random_ids(V, len(lengths), 9, low=6), 1), "attention_mask": mask}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_masked_lm_equals_transformers(tmp_path, options, side):
    compare(make("MPNetForMaskedLM", **options), tmp_path, **batch(side))


@pytest.mark.parametrize(("kind", "how"), CLASSES.items())
def test_every_class_equals_transformers(tmp_path, kind, how):
    name, labels = how
    side = "left" if name == "odd" else "right"
    compare(make(f"MPNet{kind}", **CONFIGS[name], num_labels=labels), tmp_path, **batch(side))


@pytest.mark.parametrize("side", ["left", "right"])
def test_multiple_choice_equals_transformers(tmp_path, side):
    inputs = {name: value.reshape(2, 3, 9) for name, value in batch(side, lengths=(9, 4, 1, 7, 9, 2)).items()}
    compare(make("MPNetForMultipleChoice", **CONFIGS["odd"]), tmp_path, **inputs)


def test_texts_longer_than_the_farthest_bucket_equal_transformers(tmp_path):
    compare(
        make("MPNetModel", **CONFIGS["plain"], max_position_embeddings=302), tmp_path, input_ids=random_ids(V, 1, 300)
    )


def test_positions_that_are_given_are_used(tmp_path):
    positions = np.array([[5, 3, 8, 1, 2, 0, 19]])
    compare(make("MPNetModel", **CONFIGS["plain"]), tmp_path, input_ids=random_ids(V, 2, 7), position_ids=positions)


def test_a_published_checkpoint_loads_with_what_else_it_has(tmp_path):
    """all-mpnet-base-v2 has the numbers of positions besides, microsoft/mpnet-base the tied copies."""
    model = make("MPNetForMaskedLM", **CONFIGS["plain"]).eval()
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.decoder.weight"] = tensors["mpnet.embeddings.word_embeddings.weight"].copy()
    tensors["lm_head.decoder.bias"] = tensors["lm_head.bias"].copy()
    tensors["mpnet.embeddings.position_ids"] = np.arange(20)[None]
    tensors["mpnet.pooler.dense.weight"] = np.zeros((24, 24), np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    inputs = batch()
    close("logits", forward(model, inputs)["logits"], hub.load(tmp_path)(**inputs).logits, inputs)
    tuned = hub.Lenient(architecture="MPNetForSequenceClassification", initialise=("^classifier",))
    assert hub.load(tmp_path, lenient=tuned)(**inputs).logits.shape == (3, 2)


@pytest.mark.parametrize("kind", ["MPNetForMaskedLM", "MPNetForSequenceClassification"])
def test_a_model_made_here_opens_in_transformers(tmp_path, kind):
    fields = Fields.of(make("MPNetModel", **CONFIGS["odd"]).config.to_dict())
    config, inputs = FAMILIES["mpnet"].architectures[kind].config(fields), batch()
    compare_made(config, kind, tmp_path, **inputs)


def test_missing_fields_are_those_of_transformers():
    assert read(Fields.of({})) == read(Fields.of(transformers.MPNetConfig().to_dict()))


def test_token_types_are_refused(tmp_path):
    make("MPNetModel", **CONFIGS["odd"]).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="got token_type_ids"):
        hub.load(tmp_path)(**batch(), token_type_ids=np.zeros((3, 9), int))
