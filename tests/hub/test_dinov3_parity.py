"""DINOv3 against transformers: both classes, images of any size, options, every layer, and the round trip."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.numpy import save_file  # noqa: E402

from flax_transformer import hub  # noqa: E402
from flax_transformer.hub.fields import Fields  # noqa: E402
from flax_transformer.hub.processor.image import ImageProcessor  # noqa: E402
from flax_transformer.hub.registry import find_architecture  # noqa: E402
from flax_transformer.models.vision.dinov3 import PatchRotary  # noqa: E402
from flax_transformer.ops.grid_position import grid_angles, patch_centres  # noqa: E402
from tests.hub.oracle import close, compare, compare_made, forward, same_tensors  # noqa: E402
from tests.hub.pictures import images, make  # noqa: E402

pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("dinov3", "parity", "model and backbone, every layer, attention weights, any size"),
]

BASE = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 20, "image_size": 16,
        "patch_size": 4}  # fmt: skip
CONFIGS = {
    "plain": ({**BASE, "num_register_tokens": 4}, (16, 24)),
    "gated": ({**BASE, "use_gated_mlp": True, "hidden_act": "silu", "num_register_tokens": 1, "query_bias": False,
               "value_bias": False, "mlp_bias": False, "proj_bias": False}, (33, 9)),
    "other biases": ({**BASE, "hidden_size": 20, "num_attention_heads": 5, "num_channels": 1, "key_bias": True,
                      "value_bias": False, "rope_theta": 7.0, "layerscale_value": 0.3, "layer_norm_eps": 0.1,
                      "num_register_tokens": 3, "patch_size": 3}, (20, 16)),
    "no registers": ({**BASE, "num_attention_heads": 1, "num_hidden_layers": 1, "hidden_act": "relu",
                      "use_gated_mlp": True, "pos_embed_rescale": None, "pos_embed_jitter": 1.5}, (4, 31)),
}  # fmt: skip
every_config = pytest.mark.parametrize("case", CONFIGS.values(), ids=CONFIGS)


def built(kind, options, **others):
    return make(kind, "DINOv3ViTConfig", **options, initializer_range=0.3, **others)


def sized(case):
    options, size = case
    return images(*size, options.get("num_channels", 3))


def count(case):
    options, (height, width) = case
    return (height // options["patch_size"]) * (width // options["patch_size"])


@every_config
def test_every_layer_equals_transformers(tmp_path, case):
    masked = np.random.default_rng(1).random((2, count(case))) < 0.4
    compare(built("DINOv3ViTModel", case[0]), tmp_path, pixel_values=sized(case), bool_masked_pos=masked)


@every_config
def test_feature_maps_equal_transformers(tmp_path, case):
    depth = case[0]["num_hidden_layers"]
    names = [f"stage{i}" for i in range(1, depth + 1)][::2]
    model = built("DINOv3ViTBackbone", case[0], out_features=names).eval()
    model.save_pretrained(tmp_path / "theirs")
    inputs, ours = {"pixel_values": sized(case)}, hub.load(tmp_path / "theirs")
    with torch.no_grad():
        expected = [x.numpy() for x in model(torch.as_tensor(inputs["pixel_values"])).feature_maps]
    for a, b in zip(expected, ours(**inputs).feature_maps, strict=True):
        close("feature_maps", a, b, inputs)
    hub.save(ours, tmp_path / "back")
    same_tensors(tmp_path / "theirs", tmp_path / "back")
    with torch.no_grad():
        again = transformers.DINOv3ViTBackbone.from_pretrained(tmp_path / "back").eval()
        found = again(torch.as_tensor(inputs["pixel_values"])).feature_maps
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@every_config
def test_attention_weights_are_transformers(tmp_path, case):
    model, inputs = built("DINOv3ViTModel", case[0]).eval(), {"pixel_values": sized(case)}
    model.set_attn_implementation("eager")
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = model(torch.as_tensor(inputs["pixel_values"]), output_attentions=True).attentions
    got = hub.load(tmp_path)(**inputs, output_attentions=True).attentions
    close("attentions", tuple(x.numpy() for x in expected), got, inputs)


def test_names_of_transformers_5_are_read(tmp_path):
    model, inputs = built("DINOv3ViTModel", CONFIGS["gated"][0]).eval(), {"pixel_values": sized(CONFIGS["gated"])}
    model.save_pretrained(tmp_path)
    tensors = {name: np.ascontiguousarray(x.numpy()) for name, x in model.state_dict().items()}
    assert "model.layer.0.mlp.gate_proj.weight" in tensors
    save_file(tensors, tmp_path / "model.safetensors")
    expected = forward(model, inputs)["last_hidden_state"]
    close("last_hidden_state", expected, hub.load(tmp_path)(**inputs).last_hidden_state, inputs)


@pytest.mark.parametrize("name", ["plain", "gated", "other biases"])
def test_what_is_made_here_opens_in_transformers(tmp_path, name):
    built("DINOv3ViTModel", CONFIGS[name][0]).save_pretrained(tmp_path / "a")
    config = hub.load(tmp_path / "a").model.cfg
    compare_made(config, "DINOv3ViTModel", tmp_path / "b", pixel_values=sized(CONFIGS[name]))


def test_the_encoder_of_a_classifier_opens_in_transformers(tmp_path):
    """Which has no such class: a linear layer on the class token and the mean of patches, as DINOv2's."""
    case = CONFIGS["plain"]
    built("DINOv3ViTModel", case[0]).save_pretrained(tmp_path / "encoder")
    lenient = hub.Lenient(
        architecture="DINOv3ViTForImageClassification", config={"num_labels": 5}, initialise=("^classifier",)
    )
    ours = hub.load(tmp_path / "encoder", lenient=lenient)
    hub.save(ours, tmp_path / "classifier")
    theirs, loading = transformers.DINOv3ViTModel.from_pretrained(tmp_path / "classifier", output_loading_info=True)
    assert not loading["missing_keys"]
    inputs = {"pixel_values": sized(case)}
    states = forward(theirs.eval(), inputs)["last_hidden_state"]
    vectors = np.concatenate([states[:, 0], states[:, 5:].mean(1)], -1)
    kernel, bias = (np.asarray(part[...]) for part in (ours.model.head.output.kernel, ours.model.head.output.bias))
    close("logits", vectors @ kernel + bias, ours(**inputs).logits, inputs)


def test_angles_are_transformers():
    from transformers.models.dinov3_vit.modeling_dinov3_vit import DINOv3ViTRopePositionEmbedding

    config = transformers.DINOv3ViTConfig(**{**BASE, "hidden_size": 60, "rope_theta": 31.0})
    theirs = DINOv3ViTRopePositionEmbedding(config).eval()
    for height, width in ((4, 4), (20, 36), (37, 51)):
        cos, sin = theirs(torch.zeros(1, 3, height, width))
        angles = grid_angles(patch_centres(height // 4, width // 4), 20, 31.0)
        np.testing.assert_allclose(np.tile(np.cos(angles), 2), cos, atol=1e-6)
        np.testing.assert_allclose(np.tile(np.sin(angles), 2), sin, atol=1e-6)


def test_places_move_in_training_alone_and_as_far_as_is_said():
    places = patch_centres(3, 5)
    assert PatchRotary().moved(places, None) is places
    scales = []
    for seed in range(200):
        key = jax.random.key(seed)
        ratio = PatchRotary(rescale=2.0).moved(places, key)[0] / places[0]
        np.testing.assert_allclose(ratio[0], ratio[1], rtol=1e-5)
        scales.append(float(ratio[0]))
        wide = PatchRotary(rescale=None, jitter=1.5).moved(places, key)[0] / places[0]
        assert jnp.all((wide >= 1 / 1.5 - 1e-5) & (wide <= 1.5 + 1e-5))
        assert wide[0] != wide[1]
        moved = PatchRotary(rescale=None, shift=0.25).moved(places, key) - places
        np.testing.assert_allclose(moved, np.broadcast_to(moved[0], moved.shape), atol=1e-6)
        assert np.abs(moved).max() <= 0.25 + 1e-6
    assert 0.5 - 1e-5 <= min(scales) < 0.55
    assert 1.9 < max(scales) <= 2.0 + 1e-5
    np.testing.assert_allclose(np.mean(np.log(scales)), 0, atol=0.1)


SIZES = {
    "smaller": ((61, 90), (29, 41), 2),
    "larger": ((13, 21), (50, 64), 2),
    "both": ((17, 120), (40, 31), 2),
    "cubic, smaller": ((97, 64), (30, 21), 3),
    "cubic, larger": ((5, 9), (16, 33), 3),
    "as it is": ((24, 24), (24, 24), 2),
}


@pytest.mark.parametrize("case", SIZES.values(), ids=SIZES)
def test_images_are_made_as_transformers_makes_them(case):
    """By torchvision alone, whose steps these are: scale, resize with torch's antialiasing, normalise."""
    (height, width), size, number = case
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    options = {"size": {"height": size[0], "width": size[1]}, "resample": number}
    found = ImageProcessor.of({"image_processor_type": "DINOv3ViTImageProcessorFast", **options})(pixels)
    x = torch.tensor(pixels).permute(2, 0, 1)[None] * (1 / 255)
    mode = {2: "bilinear", 3: "bicubic"}[number]
    x = torch.nn.functional.interpolate(x, size, mode=mode, antialias=True, align_corners=False)
    mean, std = (torch.tensor(each)[:, None, None] for each in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    np.testing.assert_allclose(found["pixel_values"], ((x - mean) / std).numpy(), atol=1e-5)


def test_floats_are_not_resized_otherwise():
    kind = {"image_processor_type": "DINOv3ViTImageProcessor"}
    with pytest.raises(ValueError, match="resample must be 2 or 3 where floats are resized, got 0"):
        ImageProcessor.of({**kind, "resample": 0})
    with pytest.raises(ValueError, match="do_resize needs do_rescale"):
        ImageProcessor.of({**kind, "do_rescale": False})


@pytest.mark.parametrize(
    ("kind", "change", "rule"),
    [
        ("DINOv3ViTModel", {"hidden_size": 36, "num_attention_heads": 6}, "H must be a multiple of 4, got 6"),
        ("DINOv3ViTModel", {"rope_theta": 0.0}, "must be above 0, got 0.0"),
        ("DINOv3ViTBackbone", {"apply_layernorm": False}, "apply_layernorm"),
        ("DINOv3ViTBackbone", {"reshape_hidden_states": False}, "reshape_hidden_states"),
        ("DINOv3ViTBackbone", {"return_class_token": True}, "return_class_token"),
    ],
)
def test_what_is_not_supported_is_said(kind, change, rule):
    with pytest.raises(ValueError, match=rule):
        find_architecture(kind)[1].config(Fields.of(change))
