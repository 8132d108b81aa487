"""PEGASUS against transformers: both classes, odd sizes, padding on either side, and the round trip."""

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.hub.family.pegasus import read
from flax_transformer.hub.fields import Fields
from tests.hub.oracle import compare, forward, padded, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.proves("pegasus", "parity", "both classes, every layer")]

V = 61
CONFIGS = {
    "plain": {"d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "heads": 4, "scale_embedding": True},
    "odd": {"d_model": 14, "encoder_layers": 1, "decoder_layers": 1, "heads": 7, "activation_function": "relu"},
    "deep": {"d_model": 10, "encoder_layers": 3, "decoder_layers": 1, "heads": 1},
}
SINUSOIDS = tuple(f"{at}{side}.embed_positions." for at in ("", "model.") for side in ("encoder", "decoder"))
"""Tensors that transformers writes, published files lack, and it computes where they are missing."""


def make(kind, *, heads=2, **options):
    torch.manual_seed(1)
    config = transformers.PegasusConfig(
        vocab_size=V, max_position_embeddings=20, init_std=0.3, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=17, decoder_ffn_dim=22, **options,
    )  # fmt: skip
    model = getattr(transformers, kind)(config)
    with torch.no_grad():  # biases and norms, which begin at 0 and 1, shall say something too
        for parameter in (*model.parameters(), *(each for name, each in model.named_buffers() if "bias" in name)):
            if parameter.ndim == 1 or parameter.shape == (1, V):
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("kind", ["PegasusForConditionalGeneration", "PegasusModel"])
@pytest.mark.parametrize("side", ["left", "right", None])
@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_every_class_equals_transformers(tmp_path, options, side, kind):
    inputs = {"input_ids": random_ids(V, 3, 9), "decoder_input_ids": random_ids(V, 3, 6, seed=1)}
    if side is not None:
        inputs |= {"attention_mask": padded([9, 4, 1], 9, side), "decoder_attention_mask": padded([6, 1, 3], 6, side)}
    compare(make(kind, **options), tmp_path, **inputs)


def test_the_file_opens_in_transformers_with_all_it_needs(tmp_path):
    model = make("PegasusForConditionalGeneration", **CONFIGS["plain"])
    model.save_pretrained(tmp_path / "theirs")
    hub.save(hub.load(tmp_path / "theirs"), tmp_path / "back")
    back, loading = type(model).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not loading["unexpected_keys"]
    assert all(name.startswith(SINUSOIDS) for name in loading["missing_keys"])
    inputs = {"input_ids": random_ids(V, 2, 9), "decoder_input_ids": random_ids(V, 2, 20)}
    np.testing.assert_array_equal(forward(back.eval(), inputs)["logits"], forward(model.eval(), inputs)["logits"])


def test_missing_fields_are_those_of_transformers():
    assert read(Fields.of({})) == read(Fields.of(transformers.PegasusConfig().to_dict()))


@pytest.mark.parametrize(
    ("option", "value"), [("normalize_before", False), ("tie_word_embeddings", False), ("normalize_embedding", True)]
)
def test_what_is_not_supported_is_refused_by_name(option, value):
    with pytest.raises(ValueError, match=option):
        read(Fields.of({option: value}))
