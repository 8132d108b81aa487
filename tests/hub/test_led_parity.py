"""LED against transformers: every class, windows that differ by layer, global tokens, generation, the round trip."""

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.hub.family.led import read
from flax_transformer.hub.fields import Fields
from tests.hub.oracle import close, compare, forward, padded, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("led", "parity", "every class, every layer, global tokens anywhere"),
]

V, T, EOS = 61, 27, 2
# transformers takes no window below 4, and none that does not divide the widest.
CONFIGS = {
    "turns": {
        "d_model": 24, "encoder_layers": 4, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 3, "attention_window": [12, 4, 12, 4],
    },
    "odd": {
        "d_model": 15, "encoder_layers": 3, "decoder_layers": 1, "encoder_attention_heads": 3,
        "decoder_attention_heads": 5, "activation_function": "relu", "attention_window": [4, 20, 10],
    },
    "wider than the text": {
        "d_model": 14, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 1,
        "decoder_attention_heads": 2, "attention_window": 64, "max_encoder_position_embeddings": 80,
    },
}  # fmt: skip


def make(kind, **options):
    torch.manual_seed(1)
    sizes = {"vocab_size": V, "max_encoder_position_embeddings": 60, "max_decoder_position_embeddings": 30}
    config = transformers.LEDConfig(
        **{**sizes, "encoder_ffn_dim": 17, "decoder_ffn_dim": 20, "init_std": 0.3, **options}
    )
    model = getattr(transformers, kind)(config)
    with torch.no_grad():  # biases and norms, which begin at 0 and 1, shall say something too
        for parameter in (*model.parameters(), *(each for name, each in model.named_buffers() if "bias" in name)):
            if parameter.ndim == 1 or parameter.shape == (1, V):
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def batch(*, lengths=(T, 13, 4), places=((0, 7, 26), (0, 12), ()), side="right"):
    mask = padded(lengths, T, side)
    chosen = np.zeros_like(mask)
    for row, at in enumerate(places):
        chosen[row, list(at)] = 1
    ids = np.where(mask, random_ids(V, len(lengths), T, low=4), 1)
    return {"input_ids": ids, "attention_mask": mask, "global_attention_mask": chosen}


@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_language_model_equals_transformers(tmp_path, options):
    inputs = {**batch(), "decoder_input_ids": random_ids(V, 3, 6, seed=1)}
    ours, _ = compare(make("LEDForConditionalGeneration", **options), tmp_path, **inputs)
    del inputs["global_attention_mask"]
    theirs = transformers.LEDForConditionalGeneration.from_pretrained(tmp_path / "theirs").eval()
    close("logits", forward(theirs, inputs)["logits"], ours(**inputs).logits, {})


def test_the_model_alone_equals_transformers(tmp_path):
    """With many global tokens, padding on the left, and a global token that is padding, which is none."""
    inputs = batch(places=((range(1, 22)), (2, 25), (26,)), side="left")
    compare(make("LEDModel", **CONFIGS["odd"]), tmp_path, **inputs, decoder_input_ids=random_ids(V, 3, 6, seed=1))


@pytest.mark.parametrize("kind", ["LEDModel", "LEDForQuestionAnswering"])
def test_the_source_is_read_again_where_nothing_is_to_be_decoded(tmp_path, kind):
    compare(make(kind, **CONFIGS["turns"]), tmp_path, **batch(lengths=(T, 26, 25)))


@pytest.mark.rotates
@pytest.mark.parametrize("settings", [{}, {"num_beams": 4, "length_penalty": 2.0}, {"num_beams": 3, "min_length": 9}])
@pytest.mark.parametrize("options", ["turns", "odd"])
def test_generated_tokens_equal_transformers(tmp_path, options, settings):
    """Of sources whose first token is global, as summaries are written, and of others."""
    theirs, inputs = make("LEDForConditionalGeneration", **CONFIGS[options]), batch(places=((0,), (0,), (0, 2)))
    theirs.save_pretrained(tmp_path)
    ours, plain = hub.load(tmp_path), None
    for given in (inputs, {**inputs, "global_attention_mask": None}):
        tensors = {name: torch.tensor(value) for name, value in given.items() if value is not None}
        with torch.no_grad():
            want = theirs.generate(**tensors, max_new_tokens=14, do_sample=False, **settings).numpy()
        found = ours.generate(**given, max_new_tokens=14, **settings)
        np.testing.assert_array_equal(found, want)
        assert plain is None or not np.array_equal(plain, found)
        plain = found


def test_weights_of_windows_are_those_of_transformers(tmp_path):
    """Which gives a window's keys [B, N, T, w + 1], where ours are all keys [B, N, T, T]."""
    model, inputs = make("LEDModel", **CONFIGS["turns"], attn_implementation="eager"), batch(places=())
    del inputs["global_attention_mask"]
    inputs["decoder_input_ids"] = random_ids(V, 3, 6, seed=1)
    ours, _ = compare(model, tmp_path, **inputs)
    theirs = forward(model, {**inputs, "output_attentions": True})["encoder_attentions"]
    real, at = inputs["attention_mask"] > 0, np.arange(T)
    found = ours(**inputs, output_attentions=True).encoder_attentions
    assert len(found) == len(theirs) == 4
    for weights, window in zip(found, theirs, strict=True):
        reach = (window.shape[-1] - 1) // 2
        expected = np.zeros(weights.shape)
        for ahead in range(-reach, reach + 1):
            rows = at[(at + ahead >= 0) & (at + ahead < T)]
            expected[..., rows, rows + ahead] = np.asarray(window)[..., rows, ahead + reach]
        shown = np.broadcast_to(real[:, None, :, None], expected.shape)
        np.testing.assert_allclose(np.where(shown, weights, 0), np.where(shown, expected, 0), atol=5e-6)


def test_missing_fields_are_those_of_transformers():
    theirs = transformers.LEDConfig()
    config = read(Fields.of({"model_type": "led"}))
    assert config == read(Fields.of(theirs.to_dict()))
    assert (config.source_embedding.max_length, config.encoder.windows) == (16_384, (512,))
