"""mBART against transformers: every class, odd sizes, padding on either side, and the round trip."""

import numpy as np
import pytest

from flax_transformer.hub.family.mbart import read
from flax_transformer.hub.fields import Fields
from tests.hub.oracle import compare, padded, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("mbart", "parity", "every class but `MBartForCausalLM`, every layer"),
]

V, EOS, LANGUAGE = 61, 2, 60
CONFIGS = {
    "plain": {"d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "heads": 4, "scale_embedding": True},
    "odd": {"d_model": 15, "encoder_layers": 1, "decoder_layers": 1, "heads": 3, "activation_function": "relu"},
    "deep": {"d_model": 10, "encoder_layers": 3, "decoder_layers": 1, "heads": 1},
}


def make(kind, *, heads=2, labels=3, **options):
    torch.manual_seed(1)
    config = transformers.MBartConfig(
        vocab_size=V, max_position_embeddings=20, init_std=0.3, encoder_attention_heads=heads, num_labels=labels,
        decoder_attention_heads=heads, encoder_ffn_dim=17, decoder_ffn_dim=20, **options,
    )  # fmt: skip
    model = getattr(transformers, kind)(config)
    with torch.no_grad():  # biases and norms, which begin at 0 and 1, shall say something too
        for parameter in (*model.parameters(), *(each for name, each in model.named_buffers() if "bias" in name)):
            if parameter.ndim == 1 or parameter.shape == (1, V):
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("side", ["left", "right", None])
@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_language_model_equals_transformers(tmp_path, options, side):
    inputs = {"input_ids": random_ids(V, 3, 9), "decoder_input_ids": random_ids(V, 3, 6, seed=1)}
    if side is not None:
        inputs |= {"attention_mask": padded([9, 4, 1], 9, side), "decoder_attention_mask": padded([6, 1, 3], 6, side)}
    compare(make("MBartForConditionalGeneration", **options), tmp_path, **inputs)


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("MBartModel", 3),
        ("MBartForConditionalGeneration", 3),
        ("MBartForSequenceClassification", 3),
        ("MBartForSequenceClassification", 5),
        ("MBartForQuestionAnswering", 2),
    ],
)
def test_every_class_reads_the_source_again_behind_its_language(tmp_path, kind, labels):
    """The last token that is no padding, a language, becomes the first of the decoder's input."""
    mask, ids = padded([9, 8, 7], 9), random_ids(V - 1, 3, 9)
    ids = np.where(mask, ids, 1)
    ids[range(3), [7, 6, 5]], ids[range(3), [8, 7, 6]] = EOS, LANGUAGE - np.arange(3)
    compare(make(kind, labels=labels, **CONFIGS["plain"]), tmp_path, input_ids=ids, attention_mask=mask)


def test_missing_fields_are_those_of_transformers():
    assert read(Fields.of({})) == read(Fields.of(transformers.MBartConfig().to_dict()))


@pytest.mark.parametrize(
    ("option", "value"), [("normalize_before", False), ("tie_word_embeddings", False), ("activation_function", "mish")]
)
def test_what_is_not_supported_is_refused_by_name(option, value):
    with pytest.raises(ValueError, match=option):
        read(Fields.of({option: value}))
