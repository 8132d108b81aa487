"""Backbones against transformers: feature maps of chosen stages, their norms, small grids, and the round trip."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from flax_transformer import hub  # noqa: E402
from tests.hub.oracle import compare  # noqa: E402
from tests.hub.pictures import images, make  # noqa: E402

pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves(["resnet", "convnext", "swin", "dinov2", "beit"], "parity", "backbones: maps and their norms"),
]

CONV = {"depths": [1, 2, 1], "hidden_sizes": [8, 16, 12]}
SWIN = {"embed_dim": 8, "depths": [2, 1, 2], "num_heads": [2, 4, 2], "window_size": 3, "patch_size": 2, "mlp_ratio": 2}
VIT = {"hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "patch_size": 4, "image_size": 16}
CASES = {
    "ResNet": ("ResNet", {**CONV, "embedding_size": 6, "layer_type": "basic", "out_features": ["stem", "stage3"]}, 37),
    "ResNet, last": ("ResNet", {**CONV, "embedding_size": 6}, 32),
    "ConvNext": ("ConvNext", {**CONV, "patch_size": 3, "num_stages": 3, "out_indices": [0, 1, -1]}, 40),
    "Swin": ("Swin", {**SWIN, "image_size": 24, "out_features": ["stem", "stage1", "stage2", "stage3"]}, 24),
    "Swin, absolute": (
        "Swin", {**SWIN, "image_size": 40, "out_indices": [2], "use_absolute_embeddings": True, "qkv_bias": False}, 40
    ),
    "Dinov2": ("Dinov2", {**VIT, "mlp_ratio": 2, "out_features": ["stage1", "stage3"]}, 16),
    "Dinov2, bare": (
        "Dinov2",
        {**VIT, "out_indices": [0, 2], "apply_layernorm": False, "reshape_hidden_states": False, "mlp_ratio": 3}, 16,
    ),
    "Beit": (
        "Beit", {**VIT, "intermediate_size": 9, "out_indices": [1, 3], "use_relative_position_bias": True}, 16
    ),
    "Beit, bare": (
        "Beit",
        {**VIT, "intermediate_size": 9, "reshape_hidden_states": False, "use_mean_pooling": False,
         "use_shared_relative_position_bias": True, "use_absolute_position_embeddings": True}, 16,
    ),
}  # fmt: skip


def made(kind, options):
    return make(f"{kind}Backbone", f"{kind}Config", **options)


@pytest.mark.rotates
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_feature_maps_equal_transformers(tmp_path, case):
    kind, options, size = case
    ours, got = compare(made(kind, options), tmp_path, pixel_values=images(size, size))
    alone = ours(pixel_values=images(size, size))
    assert alone.keys() == ["feature_maps"]
    np.testing.assert_array_equal(alone.feature_maps[-1], got.feature_maps[-1])


def test_a_backbone_made_here_opens_in_transformers(tmp_path):
    kind, options, size = CASES["Dinov2, bare"]
    model = made(kind, options).eval()
    model.save_pretrained(tmp_path / "theirs")
    ours = hub.load(tmp_path / "theirs")
    hub.save(hub.wrap(ours.model, "Dinov2Backbone"), tmp_path / "back")
    again = transformers.Dinov2Backbone.from_pretrained(tmp_path / "back").eval()
    with torch.no_grad():
        pixels = torch.tensor(images(size, size))
        for one, other in zip(model(pixels).feature_maps, again(pixels).feature_maps, strict=True):
            np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_a_classifier_gives_its_feature_maps(tmp_path):
    options = CASES["ResNet"][1]
    model = make("ResNetForImageClassification", "ResNetConfig", **options).eval()
    model.save_pretrained(tmp_path)
    ours = hub.load(tmp_path, lenient=hub.Lenient(architecture="ResNetBackbone"))
    with torch.no_grad():
        expected = model.resnet(torch.tensor(images(32, 32)), output_hidden_states=True).hidden_states
    for stage, found in zip((0, 3), ours(pixel_values=images(32, 32)).feature_maps, strict=True):
        np.testing.assert_allclose(found, expected[stage].numpy(), rtol=1e-4, atol=1e-5)
