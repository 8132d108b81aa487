"""Nyströmformer against transformers: every class, through landmarks and exactly, padding on either side."""

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.hub.family.nystromformer import FAMILIES, read
from flax_transformer.hub.fields import Fields
from tests.hub.oracle import compare, compare_made, padded, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("nystromformer", "parity", "every class, every layer, with landmarks and without"),
]

V, T = 61, 24
CONFIGS = {
    "landmarks": {
        "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
        "num_landmarks": 6, "segment_means_seq_len": T, "conv_kernel_size": 5,
    },
    "odd": {
        "hidden_size": 15, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 22,
        "hidden_act": "relu", "num_landmarks": 8, "segment_means_seq_len": T, "conv_kernel_size": 33,
    },
    "exact": {
        "hidden_size": 14, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 9,
        "layer_norm_eps": 0.1, "num_landmarks": 7, "segment_means_seq_len": 7, "conv_kernel_size": 3,
    },
    "no convolution": {
        "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 9,
        "num_landmarks": 4, "segment_means_seq_len": T, "conv_kernel_size": None,
    },
}  # fmt: skip
CLASSES = {
    "Model": ("odd", 2),
    "ForSequenceClassification": ("odd", 5),
    "ForTokenClassification": ("landmarks", 3),
    "ForQuestionAnswering": ("exact", 2),
}


@pytest.fixture(autouse=True)
def one_row_of_mask(monkeypatch):
    """Return landmarks the mask that they were made for, [B, 1, 1, T]; transformers 5 gives them T rows, and fails.

    Whoever attends exactly is given the same numbers by either.
    """
    from transformers.models.nystromformer import modeling_nystromformer as module

    def row(*, attention_mask, inputs_embeds, **options):
        if attention_mask is None:
            return None
        return (1.0 - attention_mask[:, None, None, :].to(inputs_embeds.dtype)) * torch.finfo(inputs_embeds.dtype).min

    monkeypatch.setattr(module, "create_bidirectional_mask", row)


def make(kind, **options):
    torch.manual_seed(1)
    kernel = options.pop("conv_kernel_size", 65)
    config = transformers.NystromformerConfig(
        vocab_size=V, max_position_embeddings=60, initializer_range=0.3, **options
    )
    object.__setattr__(config, "conv_kernel_size", kernel)  # None is a value that its type does not allow
    model = getattr(transformers, kind)(config)
    with torch.no_grad():  # biases and norms, which begin at 0 and 1, shall say something too
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def batch(side="right", lengths=(T, 13, 4)):
    mask = padded(lengths, T, side)
    types = random_ids(2, len(lengths), T, low=0)
    return {"input_ids": random_ids(V, len(lengths), T) * mask, "attention_mask": mask, "token_type_ids": types}


@pytest.mark.parametrize(("name", "side"), [("landmarks", "left"), ("odd", "right"), ("exact", "left")])
def test_masked_lm_equals_transformers(tmp_path, name, side):
    compare(make("NystromformerForMaskedLM", **CONFIGS[name]), tmp_path, **batch(side))


@pytest.mark.parametrize(("kind", "how"), CLASSES.items())
def test_every_class_equals_transformers(tmp_path, kind, how):
    name, labels = how
    compare(make(f"Nystromformer{kind}", **CONFIGS[name], num_labels=labels), tmp_path, **batch())


def test_choices_equal_transformers(tmp_path):
    inputs = {name: value.reshape(2, 2, T) for name, value in batch(lengths=(T, 9, 4, 17)).items()}
    compare(make("NystromformerForMultipleChoice", **CONFIGS["landmarks"]), tmp_path, **inputs)


@pytest.mark.parametrize("kind", ["NystromformerForMaskedLM", "NystromformerForSequenceClassification"])
def test_a_model_made_here_opens_in_transformers(tmp_path, kind):
    fields = Fields.of({**make("NystromformerModel", **CONFIGS["odd"]).config.to_dict(), "max_position_embeddings": T})
    config, inputs = FAMILIES["nystromformer"].architectures[kind].config(fields), batch()
    compare_made(config, kind, tmp_path, **inputs)


def test_missing_fields_are_those_of_transformers():
    assert read(Fields.of({})) == read(Fields.of(transformers.NystromformerConfig().to_dict()))


def test_a_model_without_convolution_is_read():
    assert read(Fields.of({"conv_kernel_size": None})).block.attention.window is None


def test_what_landmarks_cannot_be_is_refused(tmp_path):
    with pytest.raises(ValueError, match="num_landmarks must divide segment_means_seq_len, got 7 landmarks, 24"):
        read(Fields.of({"num_landmarks": 7, "segment_means_seq_len": 24}))
    make("NystromformerModel", **CONFIGS["odd"]).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="landmarks must divide the length, got T=9, landmarks=8"):
        hub.load(tmp_path)(input_ids=np.ones((1, 9), int))
