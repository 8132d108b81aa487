"""Swin against transformers: every class, odd sizes, other resolutions, and the round trip."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.numpy import load_file, save_file  # noqa: E402

from flax_transformer import hub  # noqa: E402
from tests.hub.oracle import close, forward  # noqa: E402
from tests.hub.pictures import compare, images, make  # noqa: E402

pytestmark = [pytest.mark.parity, pytest.mark.proves("swin", "parity", "every class and stage, attention weights")]

CONFIGS = {
    "plain": {"embed_dim": 8, "depths": [2, 3, 1], "num_heads": [2, 4, 2], "window_size": 3, "image_size": 24,
              "patch_size": 2},
    "odd": {"embed_dim": 6, "depths": [3, 2], "num_heads": [1, 3], "window_size": 4, "image_size": [39, 57],
            "patch_size": 4, "num_channels": 1, "mlp_ratio": 1.5, "qkv_bias": False, "hidden_act": "gelu_new",
            "layer_norm_eps": 0.1},
    "as wide as a window": {"embed_dim": 6, "depths": [2, 2], "num_heads": [3, 2], "window_size": 7,
                            "image_size": [28, 42], "patch_size": 2, "use_absolute_embeddings": True},
    "one stage": {"embed_dim": 5, "depths": [2], "num_heads": [5], "window_size": 2, "image_size": 15,
                  "patch_size": 3, "num_channels": 4, "mlp_ratio": 3, "hidden_act": "relu"},
}  # fmt: skip


def built(kind, options, **others):
    """Make a torch model whose tables of biases say something."""
    return make(kind, "SwinConfig", **options, initializer_range=0.3, **others)


def sized(options):
    size = options["image_size"]
    return images(*(size if isinstance(size, list) else (size, size)), options.get("num_channels", 3))


@pytest.mark.parametrize("kind", ["SwinModel", "SwinForImageClassification"])
@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_every_class_equals_transformers(tmp_path, kind, options):
    compare(built(kind, options, num_labels=5), tmp_path, pixel_values=sized(options))


@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_attention_weights_are_transformers(tmp_path, options):
    model, inputs = built("SwinModel", options).eval(), {"pixel_values": sized(options)}
    model.save_pretrained(tmp_path)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**{name: torch.as_tensor(x) for name, x in inputs.items()}, output_attentions=True).attentions
    got = hub.load(tmp_path)(**inputs, output_attentions=True).attentions
    close("attentions", tuple(x.numpy() for x in expected), got, inputs)


@pytest.mark.parametrize("name", ["plain", "one stage"])
def test_masked_pictures_are_restored_as_transformers_does(tmp_path, name):
    options = CONFIGS[name]
    stride = options["patch_size"] * 2 ** (len(options["depths"]) - 1)
    side = options["image_size"] // options["patch_size"]
    masked = np.random.default_rng(2).random((2, side * side)) < 0.5
    model = built("SwinForMaskedImageModeling", options, encoder_stride=stride)
    compare(model, tmp_path, pixel_values=sized(options), bool_masked_pos=masked)


@pytest.mark.parametrize("size", [(22, 30), (24, 46)])
def test_other_resolutions_are_transformers(tmp_path, size):
    model = built("SwinForImageClassification", CONFIGS["plain"], use_absolute_embeddings=True).eval()
    model.save_pretrained(tmp_path)
    inputs = {"pixel_values": images(*size)}
    expected = forward(model, {**inputs, "interpolate_pos_encoding": True})
    got = hub.load(tmp_path)(**inputs, output_hidden_states=True)
    for name, value in expected.items():
        close(name, value, got[name], inputs)


def test_names_of_transformers_5_and_what_the_first_files_had_besides_are_read(tmp_path):
    model = built("SwinForImageClassification", CONFIGS["plain"]).eval()
    model.save_pretrained(tmp_path)
    inputs = {"pixel_values": sized(CONFIGS["plain"])}
    tensors = {name: x.numpy() for name, x in model.state_dict().items() if not name.endswith("_index")}
    assert not tensors.keys() <= load_file(tmp_path / "model.safetensors").keys()
    tensors["swin.encoder.layers.0.blocks.0.attention.self.relative_position_index"] = np.zeros((9, 9))
    save_file({name: np.ascontiguousarray(x) for name, x in tensors.items()}, tmp_path / "model.safetensors")
    close("logits", forward(model, inputs)["logits"], hub.load(tmp_path)(**inputs).logits, inputs)
