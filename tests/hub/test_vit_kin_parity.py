"""DeiT, DINOv2 and the masked autoencoder against transformers: every class, odd sizes, other resolutions."""

import numpy as np
import PIL.Image
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from flax_transformer import hub  # noqa: E402
from flax_transformer.task.checkpoint import open_checkpoint  # noqa: E402
from flax_transformer.task.embedding import embed_images  # noqa: E402
from flax_transformer.task.image_attention import draw_image  # noqa: E402
from tests.hub.oracle import close, copied, forward, same_tensors  # noqa: E402
from tests.hub.pictures import compare, images, make  # noqa: E402

pytestmark = pytest.mark.parity

SIZES = {
    "plain": {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
              "image_size": 16, "patch_size": 4},
    "odd": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 22,
            "image_size": 15, "patch_size": 5, "num_channels": 1, "qkv_bias": False},
    "four channels": {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 9,
                      "image_size": 24, "patch_size": 3, "num_channels": 4, "layer_norm_eps": 1e-3},
    "large patches": {"hidden_size": 20, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 50,
                      "image_size": 27, "patch_size": 9, "hidden_act": "relu"},
}  # fmt: skip
RATIOS = {
    "plain": {"mlp_ratio": 3}, "odd": {"mlp_ratio": 2, "layerscale_value": 0.3}, "four channels": {},
    "large patches": {"use_swiglu_ffn": True, "mlp_ratio": 4},
}  # fmt: skip
DECODERS = {
    "plain": {"decoder_hidden_size": 12, "decoder_num_attention_heads": 3, "decoder_intermediate_size": 20,
              "decoder_num_hidden_layers": 2},
    "odd": {"decoder_hidden_size": 20, "decoder_num_attention_heads": 1, "decoder_intermediate_size": 7,
            "decoder_num_hidden_layers": 1, "mask_ratio": 0.5},
    "four channels": {"decoder_hidden_size": 8, "decoder_num_attention_heads": 4, "decoder_intermediate_size": 9,
                      "decoder_num_hidden_layers": 3, "mask_ratio": 0.6},
    "large patches": {"decoder_hidden_size": 16, "decoder_num_attention_heads": 2, "decoder_intermediate_size": 16,
                      "decoder_num_hidden_layers": 1},
}  # fmt: skip
every_size = pytest.mark.parametrize("name", SIZES)


def pictures(name):
    return images(SIZES[name]["image_size"], SIZES[name]["image_size"], SIZES[name].get("num_channels", 3))


def patches(name):
    return (SIZES[name]["image_size"] // SIZES[name]["patch_size"]) ** 2


def noise(name):
    return np.random.default_rng(5).random((2, patches(name)), dtype=np.float32)


@pytest.mark.proves("deit", "parity", "every class and layer, both heads")
@pytest.mark.parametrize("kind", ["DeiTModel", "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"])
@every_size
def test_deit_equals_transformers(tmp_path, kind, name):
    compare(make(kind, "DeiTConfig", **SIZES[name], num_labels=5), tmp_path, pixel_values=pictures(name))


@pytest.mark.parametrize(("kind", "more"), [
    ("ViT", {}), ("DeiT", {}), ("Beit", {}), ("Beit", {"use_mean_pooling": False}),
])  # fmt: skip
def test_a_model_without_a_pooler_equals_transformers_and_opens_as_saved(tmp_path, kind, more):
    config = getattr(transformers, f"{kind}Config")(**SIZES["plain"], **more)
    torch.manual_seed(1)
    theirs = getattr(transformers, f"{kind}Model")(config, add_pooling_layer=False).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    inputs = {"pixel_values": pictures("plain")}
    expected, ours = forward(theirs, inputs), hub.load(tmp_path / "theirs")
    got = ours(**inputs, output_hidden_states=True)
    for name in expected:
        close(name, expected[name], got[name], inputs)
    assert (got.pooler_output is None) == (not more), "a first state taken as it is has no tensors to miss"
    hub.save(ours, tmp_path / "back")
    same_tensors(tmp_path / "theirs", tmp_path / "back")
    again, told = type(theirs).from_pretrained(tmp_path / "back", add_pooling_layer=False, output_loading_info=True)
    assert not {*told["missing_keys"], *told["unexpected_keys"], *told["mismatched_keys"]}, told
    np.testing.assert_array_equal(forward(copied(again), inputs)["last_hidden_state"], expected["last_hidden_state"])
    assert hub.load(tmp_path / "back").config == ours.config


@pytest.mark.parametrize("name", ["plain", "four channels"])
def test_deit_restores_as_transformers_does(tmp_path, name):
    model = make("DeiTForMaskedImageModeling", "DeiTConfig", **SIZES[name], encoder_stride=SIZES[name]["patch_size"])
    masked = noise(name) < 0.5
    compare(model, tmp_path, pixel_values=pictures(name), bool_masked_pos=masked)


@pytest.mark.proves("dinov2", "parity", "every class and layer")
@pytest.mark.parametrize("kind", ["Dinov2Model", "Dinov2ForImageClassification"])
@every_size
def test_dinov2_equals_transformers(tmp_path, kind, name):
    options = {name: value for name, value in SIZES[name].items() if name != "intermediate_size"}
    model = make(kind, "Dinov2Config", **{**options, **RATIOS[name]}, num_labels=3)
    masked = {"bool_masked_pos": noise(name) < 0.4} if kind == "Dinov2Model" else {}
    compare(model, tmp_path, pixel_values=pictures(name), **masked)


@pytest.mark.proves("vit_mae", "parity", "both classes and every layer, for given noise")
@pytest.mark.parametrize("kind", ["ViTMAEModel", "ViTMAEForPreTraining"])
@every_size
def test_masked_autoencoder_equals_transformers(tmp_path, kind, name):
    model = make(kind, "ViTMAEConfig", **SIZES[name], **DECODERS[name])
    published = lambda name: name.replace(".decoder_encoder.layer.", ".decoder_layers.")  # noqa: E731
    compare(model, tmp_path, published=published, pixel_values=pictures(name), noise=noise(name))


@every_size
def test_an_autoencoder_read_as_a_vit_is_what_transformers_reads(tmp_path, name):
    made = make("ViTMAEForPreTraining", "ViTMAEConfig", **SIZES[name], **DECODERS[name])
    made.save_pretrained(tmp_path / "mae")
    inputs = {"pixel_values": pictures(name)}
    ours = hub.load(
        tmp_path / "mae",
        lenient=hub.Lenient(
            architecture="ViTForImageClassification", config={"num_labels": 5}, initialise=("^classifier",)
        ),
    )
    hub.save(ours, tmp_path / "vit")
    theirs = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "vit").eval()
    assert type(theirs) is transformers.ViTForImageClassification
    encoder = transformers.ViTModel.from_pretrained(tmp_path / "mae", add_pooling_layer=False).eval()
    got, expected = ours(**inputs, output_hidden_states=True), forward(theirs, inputs)
    for each in expected:
        close(each, expected[each], got[each], inputs)
    states = forward(encoder, inputs)["last_hidden_state"]
    close("last_hidden_state", states, got.last_hidden_state, inputs)
    unmasked = hub.load(tmp_path / "mae")(**inputs)
    close("last_hidden_state", states, unmasked.last_hidden_state, inputs)


def test_commands_see_all_patches_of_an_autoencoder(tmp_path):
    make("ViTMAEForPreTraining", "ViTMAEConfig", **SIZES["plain"], **DECODERS["plain"]).save_pretrained(tmp_path)
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(tmp_path)
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    image = PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8))
    image.save(tmp_path / "noise.png")
    encoder = transformers.ViTModel.from_pretrained(tmp_path, add_pooling_layer=False, attn_implementation="eager")
    with torch.no_grad():
        given = {"pixel_values": torch.as_tensor(np.asarray(processor(image)["pixel_values"]))}
        expected = encoder.eval()(**given, output_attentions=True)
    pretrained = open_checkpoint(str(tmp_path))
    vectors = embed_images(pretrained, [tmp_path / "noise.png"])
    np.testing.assert_allclose(vectors, expected.last_hidden_state.mean(1), rtol=1e-4, atol=1e-5)
    (maps,) = draw_image(pretrained, tmp_path / "noise.png")[0].maps
    np.testing.assert_allclose(maps.weights, np.concatenate(expected.attentions), atol=1e-5)


OTHERS = {
    "deit": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", {"interpolate_pos_encoding": True}, {}),
    "dinov2": ("Dinov2ForImageClassification", "Dinov2Config", {}, {}),
    "vit_mae": ("ViTMAEForPreTraining", "ViTMAEConfig", {"interpolate_pos_encoding": True}, DECODERS["plain"]),
}


@pytest.mark.parametrize(("family", "size"), [
    ("deit", (16, 24)), ("deit", (33, 9)), ("dinov2", (17, 24)), ("dinov2", (8, 31)), ("vit_mae", (24, 24)),
])  # fmt: skip
def test_other_resolutions_are_transformers(tmp_path, family, size):
    kind, config, flags, more = OTHERS[family]
    model = make(kind, config, **SIZES["plain"], **more)
    model.save_pretrained(tmp_path)
    inputs = {"pixel_values": images(*size)}
    if family == "vit_mae":
        inputs["noise"] = np.random.default_rng(3).random((2, (size[0] // 4) * (size[1] // 4)), dtype=np.float32)
    expected = forward(model.eval(), {**inputs, **flags})
    got = hub.load(tmp_path)(**inputs, output_hidden_states=True)
    for name, value in expected.items():
        close(name, value, got[name], inputs)
