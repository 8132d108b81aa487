"""GIT against transformers: images before a text, several of them, generation, and the round trip."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


from flax_transformer import hub  # noqa: E402
from tests.hub.oracle import close, compare, forward, padded, part  # noqa: E402
from tests.hub.pictures import images, strengthen  # noqa: E402

pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("git", "parity", "every class and layer, frames, generated tokens"),
]

CONFIGS = {
    "plain": (
        {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40},
        {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20,
         "image_size": 12, "patch_size": 4},
    ),
    "tied": (
        {"hidden_size": 15, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 22,
         "hidden_act": "relu", "layer_norm_eps": 1e-3, "tie_word_embeddings": True},
        {"hidden_size": 10, "num_hidden_layers": 4, "num_attention_heads": 5, "intermediate_size": 9,
         "image_size": 17, "patch_size": 5, "num_channels": 1, "hidden_act": "gelu"},
    ),
    "frames": (
        {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 50,
         "num_image_with_embedding": 3},
        {"hidden_size": 14, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 30,
         "image_size": 15, "patch_size": 5, "num_channels": 4, "layer_norm_eps": 1e-3},
    ),
}  # fmt: skip


def made(name, kind="GitForCausalLM"):
    text, vision = CONFIGS[name]
    ids = {"vocab_size": 50, "max_position_embeddings": 33, "pad_token_id": 3, "bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(0)
    spread = {"initializer_range": 0.4}
    config = transformers.GitConfig(vision_config={**vision, **spread}, **ids, **text, **spread)
    config = config.vision_config if kind == "GitVisionModel" else config
    return strengthen(getattr(transformers, kind)(config)).eval()


def pictures(name):
    text, vision = CONFIGS[name]
    found = images(vision["image_size"], vision["image_size"], vision.get("num_channels", 3))
    several = np.stack([found, found[::-1], 2 * found], axis=1)[:, : text.get("num_image_with_embedding")]
    return {"pixel_values": several if "num_image_with_embedding" in text else found}


def texts(padding=True):
    ids = {"input_ids": np.random.default_rng(0).integers(4, 50, (2, 7))}
    return {**ids, "attention_mask": padded([7, 4], 7, "left")} if padding else ids


@pytest.mark.parametrize("kind", ["GitForCausalLM", "GitModel"])
@pytest.mark.parametrize("name", CONFIGS)
def test_all_positions_equal_transformers(tmp_path, name, kind):
    compare(made(name, kind), tmp_path, **texts(), **pictures(name))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_encoder_of_pictures_alone(tmp_path, name):
    one = pictures(name)["pixel_values"]
    compare(made(name, "GitVisionModel"), tmp_path, pixel_values=one[:, 0] if one.ndim == 5 else one)


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_pictures_than_there_are_places(tmp_path, count):
    model = made("frames")
    given = {**texts(False), "pixel_values": pictures("frames")["pixel_values"][:, :count]}
    compare(model, tmp_path, **given)
    one = {**given, "pixel_values": given["pixel_values"][:, 0]}  # without an embedding of its place
    close("logits", forward(model, one)["logits"], hub.load(tmp_path / "theirs")(**one).logits, one)


@pytest.mark.parametrize("size", [(16, 24), (8, 20)])
def test_other_resolutions_are_transformers(tmp_path, size):
    model = made("plain")
    model.save_pretrained(tmp_path)
    inputs = {**texts(False), "pixel_values": images(*size)}
    expected = forward(model, {**inputs, "interpolate_pos_encoding": True})
    got = hub.load(tmp_path)(**inputs, output_hidden_states=True)
    for name, value in expected.items():
        close(name, value, part(got, name), inputs)


@pytest.mark.rotates
@pytest.mark.parametrize(
    "settings", [{}, {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.5}, {"repetition_penalty": 1.4}]
)
@pytest.mark.parametrize("prompt", [{}, texts(False), texts()], ids=["nothing", "prompt", "padded"])
@pytest.mark.parametrize("name", ["plain", "frames"])
def test_generated_tokens_are_transformers(tmp_path, name, prompt, settings):
    model = made(name)
    model.save_pretrained(tmp_path)
    given = {**prompt, **pictures(name)}
    if "attention_mask" in given:
        given["input_ids"] = np.where(given["attention_mask"], given["input_ids"], 3)
    tensors = {key: torch.as_tensor(value) for key, value in given.items()}
    expected = model.generate(**tensors, max_new_tokens=15, do_sample=False, **settings).numpy()
    got = hub.load(tmp_path).generate(**given, max_new_tokens=15, **settings)
    np.testing.assert_array_equal(np.asarray(got), expected)


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
def test_as_long_as_nobody_says(tmp_path):
    model = made("plain")
    model.save_pretrained(tmp_path)
    given = pictures("plain")
    expected = model.generate(pixel_values=torch.as_tensor(given["pixel_values"]), do_sample=False).numpy()
    np.testing.assert_array_equal(np.asarray(hub.load(tmp_path).generate(**given)), expected)
