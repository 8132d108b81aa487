"""RoBERTa and its kin against transformers: every class, positions by ids, padding on either side, the round trip."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flax_transformer import hub
from flax_transformer.hub.family.roberta import FAMILIES, read
from flax_transformer.hub.fields import Fields
from tests.hub.oracle import close, compare, compare_made, forward, padded, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("roberta", "parity", "every class but `…ForCausalLM`, every layer"),
]

V = 61
CONFIGS = {
    "plain": {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40},
    "odd": {
        "hidden_size": 15, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 22,
        "hidden_act": "relu", "pad_token_id": 0,
    },
    "eps": {
        "hidden_size": 14, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 9,
        "layer_norm_eps": 0.1, "pad_token_id": 5, "max_position_embeddings": 15, "type_vocab_size": 2,
    },
}  # fmt: skip
CLASSES = {
    "Model": ("odd", 2),
    "ForSequenceClassification": ("eps", 5),
    "ForTokenClassification": ("eps", 3),
    "ForQuestionAnswering": ("odd", 2),
}


def make(kind, config="RobertaConfig", **options):
    torch.manual_seed(1)
    defaults = {"vocab_size": V, "max_position_embeddings": 20, "initializer_range": 0.3, "type_vocab_size": 1}
    model = getattr(transformers, kind)(getattr(transformers, config)(**{**defaults, **options}))
    with torch.no_grad():  # biases and norms, which begin at 0 and 1, shall say something too
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def batch(pad=1, side="right", *, lengths=(9, 4, 1)):
    mask = padded(lengths, 9, side)
    ids = np.where(mask, random_ids(V, len(lengths), 9, low=6), pad)
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_masked_lm_equals_transformers(tmp_path, options, side):
    compare(make("RobertaForMaskedLM", **options), tmp_path, **batch(options.get("pad_token_id", 1), side))


@pytest.mark.parametrize(("kind", "how"), CLASSES.items())
def test_every_class_equals_transformers(tmp_path, kind, how):
    name, labels = how
    options, side = CONFIGS[name], "left" if name == "odd" else "right"
    compare(make(f"Roberta{kind}", **options, num_labels=labels), tmp_path, **batch(options["pad_token_id"], side))


@pytest.mark.parametrize("side", ["left", "right"])
def test_multiple_choice_equals_transformers(tmp_path, side):
    inputs = {name: value.reshape(2, 3, 9) for name, value in batch(0, side, lengths=(9, 4, 1, 7, 9, 2)).items()}
    compare(make("RobertaForMultipleChoice", **CONFIGS["odd"]), tmp_path, **inputs)


def test_padding_tokens_are_not_counted_whatever_the_mask_says(tmp_path):
    ids = np.array([[1, 7, 1, 9, 1, 1, 12, 8, 1]])
    compare(make("RobertaModel", **CONFIGS["plain"]), tmp_path, input_ids=ids)


def test_positions_that_are_given_are_used(tmp_path):
    positions = np.array([[5, 3, 8, 1, 2, 0, 19]])
    compare(make("RobertaModel", **CONFIGS["plain"]), tmp_path, input_ids=random_ids(V, 2, 7), position_ids=positions)


@pytest.mark.parametrize("kin", ["XLMRoberta", "Camembert"])
def test_kin_equal_transformers(tmp_path, kin):
    made = {"config": f"{kin}Config", **CONFIGS["plain"]}
    compare(make(f"{kin}ForMaskedLM", **made), tmp_path, **batch())
    compare(make(f"{kin}ForSequenceClassification", **made), tmp_path / "classes", **batch())


def test_an_untied_output_layer_equals_transformers(tmp_path):
    """Beside it transformers keeps a bias that it never reads; files with it load, files without it too."""
    model = make("RobertaForMaskedLM", **CONFIGS["plain"], tie_word_embeddings=False).eval()
    inputs = batch()
    model.save_pretrained(tmp_path / "whole")
    close("logits", forward(model, inputs)["logits"], hub.load(tmp_path / "whole")(**inputs).logits, inputs)
    del model.lm_head.bias
    compare(model, tmp_path, **inputs)


def test_a_published_checkpoint_loads_with_what_else_it_has(tmp_path):
    """roberta-base is a RobertaForMaskedLM with a pooler, positions and the tied copies beside."""
    model = make("RobertaForMaskedLM", **CONFIGS["plain"]).eval()
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.decoder.weight"] = tensors["roberta.embeddings.word_embeddings.weight"].copy()
    tensors["lm_head.decoder.bias"] = tensors["lm_head.bias"].copy()
    tensors["roberta.embeddings.position_ids"] = np.arange(20)[None]
    tensors["roberta.pooler.dense.weight"] = np.zeros((24, 24), np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    inputs = batch()
    close("logits", forward(model, inputs)["logits"], hub.load(tmp_path)(**inputs).logits, inputs)
    tuned = hub.Lenient(architecture="RobertaForSequenceClassification", initialise=("^classifier",))
    assert hub.load(tmp_path, lenient=tuned)(**inputs).logits.shape == (3, 2)


@pytest.mark.parametrize("kind", ["RobertaForMaskedLM", "RobertaForSequenceClassification"])
def test_a_model_made_here_opens_in_transformers(tmp_path, kind):
    fields = Fields.of(make("RobertaModel", **CONFIGS["odd"]).config.to_dict())
    config, inputs = FAMILIES["roberta"].architectures[kind].config(fields), batch(0)
    compare_made(config, kind, tmp_path, **inputs)


def test_the_longest_input_has_as_many_tokens_as_positions_beside_paddings(tmp_path):
    model = make("RobertaModel", **CONFIGS["plain"], max_position_embeddings=11)
    ours, _ = compare(model, tmp_path, input_ids=random_ids(V, 1, 9, low=6))
    with pytest.raises(ValueError, match="longer than the positions: 10 tokens, 9 positions"):
        ours(input_ids=random_ids(V, 1, 10))


@pytest.mark.parametrize("kin", ["Roberta", "XLMRoberta", "Camembert"])
def test_missing_fields_are_those_of_transformers(kin):
    theirs = getattr(transformers, f"{kin}Config")()
    config = read(Fields.of({"model_type": theirs.model_type}))
    assert config == read(Fields.of(theirs.to_dict()))
    assert (config.embedding.vocab, config.embedding.offset) == (theirs.vocab_size, theirs.pad_token_id + 1)


def test_unsupported_options_are_named():
    with pytest.raises(ValueError, match="pad_token_id"):
        read(Fields.of({"pad_token_id": None}))
    with pytest.raises(ValueError, match="positions must go on after padding's, got max_position_embeddings=3, pad=2"):
        read(Fields.of({"pad_token_id": 2, "max_position_embeddings": 3}))
    with pytest.raises(ValueError, match="position_embedding_type"):
        read(Fields.of({"position_embedding_type": "relative_key"}))


def test_dropout_is_where_transformers_has_it():
    fields = Fields.of({"hidden_dropout_prob": 0.25, "classifier_dropout": 0.5})
    head = lambda kind: FAMILIES["roberta"].architectures[kind].config(fields).head  # noqa: E731
    assert (head("RobertaForSequenceClassification").dropout, head("RobertaForMultipleChoice").dropout) == (0.5, 0.25)
    assert head("RobertaForSequenceClassification").dropout_first
    assert head("RobertaForQuestionAnswering").dropout == 0
