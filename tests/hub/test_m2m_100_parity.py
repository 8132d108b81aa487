"""M2M-100 against transformers: both classes, positions that skip padding wherever it is, and the round trip."""

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.hub.family.m2m_100 import read
from flax_transformer.hub.fields import Fields
from tests.hub.oracle import compare, padded, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.proves("m2m_100", "parity", "both classes, every layer")]

V, PAD = 61, 1
CONFIGS = {
    "plain": {"d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "heads": 4},
    "odd": {"d_model": 14, "encoder_layers": 1, "decoder_layers": 1, "heads": 7, "scale_embedding": False},
    "deep": {"d_model": 10, "encoder_layers": 3, "decoder_layers": 1, "heads": 1, "activation_function": "gelu"},
}


def make(kind, *, heads=2, **options):
    torch.manual_seed(1)
    config = transformers.M2M100Config(
        vocab_size=V, max_position_embeddings=20, init_std=0.3, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=17, decoder_ffn_dim=20, **options,
    )  # fmt: skip
    model = getattr(transformers, kind)(config)
    with torch.no_grad():  # biases and norms, which begin at 0 and 1, shall say something too
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def batch(side):
    masks = padded([9, 4, 1], 9, side), padded([6, 1, 3], 6, side)
    source, target = random_ids(V, 3, 9), random_ids(V, 3, 6, seed=1)
    return {
        "input_ids": np.where(masks[0], source, PAD), "attention_mask": masks[0],
        "decoder_input_ids": np.where(masks[1], target, PAD), "decoder_attention_mask": masks[1],
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["M2M100ForConditionalGeneration", "M2M100Model"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_every_class_equals_transformers(tmp_path, options, side, kind):
    compare(make(kind, **options), tmp_path, **batch(side))


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("side", ["left", "right"])
def test_generated_tokens_skip_the_padding_of_a_source(tmp_path, side, num_beams):
    theirs = make("M2M100ForConditionalGeneration", **CONFIGS["plain"])
    theirs.save_pretrained(tmp_path)
    given = {name: value for name, value in batch(side).items() if "decoder" not in name}
    settings = {"max_new_tokens": 12, "num_beams": num_beams, "forced_bos_token_id": 50}
    with torch.no_grad():
        tensors = {name: torch.tensor(value) for name, value in given.items()}
        want = theirs.generate(**tensors, **settings, do_sample=False).numpy()
    found = hub.load(tmp_path).generate(**given, **settings)
    np.testing.assert_array_equal(found, want)
    assert (want[:, 1] == 50).all()


def test_missing_fields_are_those_of_transformers():
    config = read(Fields.of({}))
    assert config == read(Fields.of(transformers.M2M100Config().to_dict()))
    assert (config.encoder.layer_drop, config.embedding.offset) == (0.05, 2)


@pytest.mark.parametrize(
    ("option", "value"), [("normalize_before", False), ("tie_word_embeddings", False), ("activation_function", "mish")]
)
def test_what_is_not_supported_is_refused_by_name(option, value):
    with pytest.raises(ValueError, match=option):
        read(Fields.of({option: value}))
