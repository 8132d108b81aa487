"""BEiT against transformers: every class, biases of layers and shared ones, other resolutions, and the round trip."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.numpy import load_file, save_file  # noqa: E402

from flax_transformer import hub  # noqa: E402
from tests.hub.oracle import close, forward  # noqa: E402
from tests.hub.pictures import compare, images, make  # noqa: E402

pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves(
        "beit", "parity", "every class but `BeitForSemanticSegmentation` and `BeitBackbone`, every layer"
    ),
]

CONFIGS = {
    "plain": {"hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 20,
              "image_size": 16, "patch_size": 4, "use_relative_position_bias": True},
    "shared": {"hidden_size": 10, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 9,
               "image_size": 17, "patch_size": 5, "num_channels": 1, "hidden_act": "relu", "use_mean_pooling": False,
               "use_shared_relative_position_bias": True, "use_absolute_position_embeddings": True},
    "oblong": {"hidden_size": 14, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 31,
               "image_size": [14, 23], "patch_size": 4, "layer_norm_eps": 1e-3, "layer_scale_init_value": 0.0},
    "both": {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 50,
             "image_size": 12, "patch_size": 2, "use_relative_position_bias": True, "num_channels": 4,
             "use_shared_relative_position_bias": True, "hidden_act": "gelu_new", "use_mean_pooling": False},
}  # fmt: skip


def built(kind, options, **others):
    return make(kind, "BeitConfig", **options, initializer_range=0.3, vocab_size=11, **others)


def sized(options):
    size = options["image_size"]
    return images(*(size if isinstance(size, list) else (size, size)), options.get("num_channels", 3))


@pytest.mark.parametrize("kind", ["BeitModel", "BeitForImageClassification"])
@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_every_class_equals_transformers(tmp_path, kind, options):
    compare(built(kind, options, num_labels=5), tmp_path, pixel_values=sized(options))


def masked(options):
    patches = (options["image_size"] // options["patch_size"]) ** 2
    return {"pixel_values": sized(options), "bool_masked_pos": np.random.default_rng(2).random((2, patches)) < 0.5}


@pytest.mark.parametrize("name", ["plain", "both"])
def test_masked_patches_are_named_as_transformers_does(tmp_path, name):
    options = {**CONFIGS[name], "use_mean_pooling": True, "use_mask_token": True}
    compare(built("BeitForMaskedImageModeling", options), tmp_path, **masked(options))


def test_two_norms_in_turn_are_transformers(tmp_path):
    """Which takes one for the other when it reads its own file, so that there is no way back."""
    options = {**CONFIGS["both"], "use_mask_token": True}
    model = built("BeitForMaskedImageModeling", options).eval()
    model.save_pretrained(tmp_path)
    close("logits", forward(model, masked(options))["logits"], hub.load(tmp_path)(**masked(options)).logits, {})


@pytest.mark.parametrize("size", [(16, 24), (9, 31)])
@pytest.mark.parametrize("name", ["plain", "both"])
def test_other_resolutions_are_transformers(tmp_path, name, size):
    model = built("BeitForImageClassification", CONFIGS[name], use_absolute_position_embeddings=True).eval()
    model.save_pretrained(tmp_path)
    inputs = {"pixel_values": images(*size, CONFIGS[name].get("num_channels", 3))}
    expected = forward(model, inputs)
    got = hub.load(tmp_path)(**inputs, output_hidden_states=True)
    for key, value in expected.items():
        close(key, value, got[key], inputs)


def test_names_of_transformers_5_and_what_the_first_files_had_besides_are_read(tmp_path):
    model = built("BeitForImageClassification", CONFIGS["both"]).eval()
    model.save_pretrained(tmp_path)
    inputs = {"pixel_values": sized(CONFIGS["both"])}
    tensors = {name: np.ascontiguousarray(x.numpy()) for name, x in model.state_dict().items()}
    assert not tensors.keys() <= load_file(tmp_path / "model.safetensors").keys()
    tensors["beit.encoder.layer.0.attention.attention.relative_position_bias.relative_position_index"] = np.zeros(9)
    save_file(tensors, tmp_path / "model.safetensors")
    close("logits", forward(model, inputs)["logits"], hub.load(tmp_path)(**inputs).logits, inputs)
