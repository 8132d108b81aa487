"""ViT against transformers: every class, odd sizes, other resolutions, and the round trip."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from flax_transformer import hub  # noqa: E402
from tests.hub.oracle import close, forward  # noqa: E402
from tests.hub.pictures import compare, images, make  # noqa: E402

pytestmark = [pytest.mark.parity, pytest.mark.proves("vit", "parity", "every class and layer")]

CONFIGS = {
    "plain": {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
              "image_size": 16, "patch_size": 4},
    "odd": {"hidden_size": 15, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 22,
            "image_size": 17, "patch_size": 5, "num_channels": 1, "hidden_act": "relu", "qkv_bias": False},
    "oblong": {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 9,
               "image_size": [14, 23], "patch_size": [4, 3], "num_channels": 4, "layer_norm_eps": 1e-3},
    "one head": {"hidden_size": 14, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 50,
                 "image_size": 12, "patch_size": 6, "hidden_act": "quick_gelu"},
}  # fmt: skip


def sized(options):
    size = options["image_size"]
    height, width = size if isinstance(size, list) else (size, size)
    return images(height, width, options.get("num_channels", 3))


@pytest.mark.parametrize("kind", ["ViTModel", "ViTForImageClassification"])
@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_every_class_equals_transformers(tmp_path, kind, options):
    compare(make(kind, "ViTConfig", **options, num_labels=5), tmp_path, pixel_values=sized(options))


@pytest.mark.parametrize("name", ["plain", "one head"])
def test_masked_pictures_are_restored_as_transformers_does(tmp_path, name):
    options = CONFIGS[name]
    model = make("ViTForMaskedImageModeling", "ViTConfig", **options, encoder_stride=options["patch_size"])
    side = options["image_size"] // options["patch_size"]
    masked = np.random.default_rng(2).random((2, side * side)) < 0.5
    compare(model, tmp_path, pixel_values=sized(options), bool_masked_pos=masked)


@pytest.mark.parametrize("size", [(16, 24), (9, 31), (40, 8)])
def test_other_resolutions_are_transformers(tmp_path, size):
    model = make("ViTForImageClassification", "ViTConfig", **CONFIGS["plain"])
    model.save_pretrained(tmp_path)
    inputs = {"pixel_values": images(*size)}
    expected = forward(model.eval(), {**inputs, "interpolate_pos_encoding": True})
    got = hub.load(tmp_path)(**inputs, output_hidden_states=True)
    for name, value in expected.items():
        close(name, value, got[name], inputs)
