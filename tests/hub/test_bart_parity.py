"""BART against transformers: every class, odd sizes, padding on either side, and the round trip."""

import pytest

from flax_transformer import hub
from flax_transformer.hub.family.bart import read
from flax_transformer.hub.fields import Fields
from tests.hub.oracle import compare, padded, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("bart", "parity", "every class but `BartForCausalLM`, every layer"),
]

V, EOS = 61, 2
CONFIGS = {
    "plain": {"d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "heads": 4, "inner": 40},
    "odd": {"d_model": 15, "encoder_layers": 1, "decoder_layers": 1, "heads": 3, "inner": 22, "scale_embedding": True},
    "relu": {"d_model": 10, "encoder_layers": 3, "decoder_layers": 1, "heads": 1, "activation_function": "relu"},
}


def make(kind, *, heads=2, inner=17, labels=3, **options):
    torch.manual_seed(1)
    config = transformers.BartConfig(
        vocab_size=V, max_position_embeddings=20, init_std=0.3, encoder_attention_heads=heads, num_labels=labels,
        decoder_attention_heads=heads, encoder_ffn_dim=inner, decoder_ffn_dim=inner + 3, **options,
    )  # fmt: skip
    model = getattr(transformers, kind)(config)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    return model


def ended(rows, length):
    """Return token ids of which each row has one end token, at another place."""
    ids = random_ids(V, rows, length)
    ids[range(rows), [length - 1 - i for i in range(rows)]] = EOS
    return ids


@pytest.mark.parametrize("side", ["left", "right", None])
@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_language_model_equals_transformers(tmp_path, options, side):
    inputs = {"input_ids": random_ids(V, 3, 9), "decoder_input_ids": random_ids(V, 3, 6, seed=1)}
    if side is not None:
        inputs |= {"attention_mask": padded([9, 4, 1], 9, side), "decoder_attention_mask": padded([6, 1, 3], 6, side)}
    compare(make("BartForConditionalGeneration", **options), tmp_path, **inputs)


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("BartModel", 3),
        ("BartForConditionalGeneration", 3),
        ("BartForSequenceClassification", 3),
        ("BartForSequenceClassification", 5),
        ("BartForQuestionAnswering", 2),
    ],
)
def test_every_class_reads_the_source_again_where_nothing_is_to_be_decoded(tmp_path, kind, labels):
    model = make(kind, labels=labels, **CONFIGS["plain"])
    compare(model, tmp_path, input_ids=ended(3, 9), attention_mask=padded([9, 8, 7], 9))


def test_a_checkpoint_with_tied_copies_and_old_buffers_loads(tmp_path):
    from safetensors.torch import load_file, save_file

    make("BartForConditionalGeneration", **CONFIGS["plain"]).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    plain, tensors = hub.load(tmp_path).model, load_file(file)
    for name in ("lm_head", "model.encoder.embed_tokens", "model.decoder.embed_tokens"):
        tensors[f"{name}.weight"] = tensors["model.shared.weight"].clone()
    tensors["model.encoder.version"] = torch.tensor([2.0])
    save_file(tensors, file)
    assert (hub.load(tmp_path).model.embedding.token.embedding[...] == plain.embedding.token.embedding[...]).all()
    tensors["lm_head.weight"] += 1
    save_file(tensors, file)
    with pytest.raises(ValueError, match=r"not a copy: lm_head.weight must equal model.shared.weight"):
        hub.load(tmp_path)


@pytest.mark.parametrize(
    ("option", "value"), [("normalize_before", True), ("tie_word_embeddings", False), ("activation_function", "mish")]
)
def test_what_is_not_supported_is_refused_by_name(option, value):
    with pytest.raises(ValueError, match=option):
        read(Fields.of({option: value}))
