"""Attention over an image is the model's own, at the patches where it belongs, on a page that shows whose it is."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from flax_transformer import hub
from flax_transformer.hub.processor.image import ImageProcessor
from flax_transformer.models.vision.swin import LARGEST
from flax_transformer.report import image_attention_figure
from flax_transformer.task import image_attention
from flax_transformer.task.embedding import embed_images
from flax_transformer.task.image_attention import draw_image
from flax_transformer.task.image_classification import classify_images

pytestmark = pytest.mark.proves("report", "attention over images, rollout")

GOLDEN = Path(__file__).parent.parent / "hub/golden"
QUICK = ("vit", "swin")
FAMILIES = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in (
        "vit",
        "deit",
        "dinov2",
        "dinov3_vit",
        "vit_mae",
        "beit",
        "pvt",
        "segformer",
        "swin",
        "detr",
        "clip",
        "siglip",
    )
]


def load(name):
    """Open a tiny checkpoint, with a processor that makes images of 24 × 36 pixels."""
    pretrained = hub.load(GOLDEN / name)
    half = [0.5] * (pretrained.config.channels or 3)
    options = {"size": {"height": 24, "width": 36}, "image_mean": half, "image_std": half}
    processor = ImageProcessor.of({"image_processor_type": "ViTImageProcessor", **options})
    return replace(pretrained, processor=processor)


def picture(pretrained):
    channels = pretrained.config.channels or 3
    pixels = np.random.default_rng(0).integers(0, 256, (50, 40, channels), np.uint8)
    return PIL.Image.fromarray(pixels[..., 0] if channels == 1 else pixels)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_drawn(name):
    pretrained = load(name)
    image = picture(pretrained)
    attention, notes = draw_image(pretrained, image, "noise.png")
    assert (notes, attention.source, attention.pixels.shape) == ([], "noise.png", (24, 36, 3))
    for maps in attention.maps:
        np.testing.assert_allclose(maps.weights.sum(-1), 1, atol=1e-5)
        assert maps.queries.rows * maps.queries.height <= 24 + maps.queries.height
        if (rollout := maps.rollout()) is not None:
            np.testing.assert_allclose(rollout.sum(-1), 1, atol=1e-5)
    if name != "swin":
        output = pretrained(**pretrained.processor(image), output_attentions=True)
        theirs = {
            "detr": output.encoder_attentions, "clip": output.vision_model_output, "siglip": output.vision_model_output,
        }.get(name, output.attentions)  # fmt: skip
        theirs = getattr(theirs, "attentions", theirs)
        drawn = attention.maps[:1] if name == "detr" else attention.maps
        ours = [layer for maps in drawn for layer in maps.weights]
        for layer, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(layer, other[0], atol=1e-6)
    if "classification" in pretrained.architecture.uses:
        logits = np.asarray(pretrained(**pretrained.processor(image)).logits[0])
        assert attention.output.startswith(f"LABEL_{logits.argmax()} ")


@pytest.mark.rotates
@pytest.mark.parametrize("threshold", [0.0, 0.3, 1.0])
def test_what_found_an_object_is_named_by_it(monkeypatch, threshold):
    """Of a detector's queries those that found something look, the surest first; if none did, the surest alone."""
    monkeypatch.setattr(image_attention, "THRESHOLD", threshold)
    pretrained = load("detr")
    image = picture(pretrained)
    attention, _ = draw_image(pretrained, image)
    output = pretrained(**pretrained.processor(image), output_attentions=True)
    logits = np.asarray(output.logits[0])
    chances = (np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))[:, :-1]
    order = np.argsort(-chances.max(-1), kind="stable")
    sure = [i for i in order if chances[i].max() >= threshold]
    names = [f"LABEL_{chances[i].argmax()} {chances[i].max():.2f}" for i in sure or order[:1]]
    decoder = attention.maps[1]
    assert decoder.queries.tokens == tuple(names)
    assert attention.output == (", ".join(names) if sure else "nothing found")
    for layer, other in zip(decoder.weights, output.cross_attentions, strict=True):
        np.testing.assert_allclose(layer, other[0][:, sure or order[:1]], atol=1e-6)
    title = image_attention_figure(attention).get_suptitle()
    assert title.startswith(f"decoder: attention of {names[0]} to patches, layer 2 of 2")


def reader_of_colours():
    """Make an ImageGPT of images of 4 × 8 pixels in 39 colours."""
    lenient = hub.Lenient(
        architecture="ImageGPTForImageClassification",
        config={"num_labels": 3},
        initialise=("score",),
        ignore=("^lm_head",),
    )
    pretrained = hub.load(GOLDEN / "imagegpt", lenient=lenient)
    clusters = np.random.default_rng(1).uniform(-1, 1, (39, 3)).tolist()
    options = {"size": {"height": 4, "width": 8}, "clusters": clusters}
    processor = ImageProcessor.of({"image_processor_type": "ImageGPTImageProcessor", **options})
    return replace(pretrained, processor=processor)


@pytest.mark.rotates
def test_colours_are_seen_where_their_pixels_are(tmp_path):
    pretrained = reader_of_colours()
    image = picture(pretrained)
    attention, notes = draw_image(pretrained, image)
    (maps,) = attention.maps
    assert (notes, maps.queries.count, attention.pixels.shape) == ([], 32, (4, 8, 3))
    output = pretrained(**pretrained.processor(image), output_attentions=True)
    for layer, other in zip(maps.weights, output.attentions, strict=True):
        np.testing.assert_allclose(layer, other[0], atol=1e-6)
        np.testing.assert_array_equal(layer, np.tril(layer))
    image.save(tmp_path / "noise.png")
    (labels,) = classify_images(pretrained, [tmp_path / "noise.png"])
    logits = np.asarray(output.logits[0])
    chances = np.exp(logits) / np.exp(logits).sum()
    assert labels[0].name == f"LABEL_{logits.argmax()}"
    np.testing.assert_allclose(labels[0].probability, chances.max(), rtol=1e-5)
    vectors = embed_images(pretrained, [tmp_path / "noise.png"])
    np.testing.assert_allclose(vectors[0], output.last_hidden_state[0].mean(0), atol=1e-6)


@pytest.mark.rotates
def test_layers_of_too_many_patches_are_left_out_and_named(monkeypatch):
    pretrained = load("swin")
    monkeypatch.setattr("flax_transformer.models.vision.swin.LARGEST", 100**2)
    attention, notes = draw_image(pretrained, picture(pretrained))
    assert [maps.name for maps in attention.maps] == ["stage 2"]
    assert notes == ["The attention of stage 1 is not drawn: 12×18 patches are too many."]
    monkeypatch.setattr("flax_transformer.models.vision.swin.LARGEST", 1)
    with pytest.raises(ValueError, match=f"a head has at most {LARGEST:,} weights, got more in every layer"):
        draw_image(pretrained, picture(pretrained))


@pytest.mark.parametrize(("name", "says"), [
    ("resnet", "layers attend to its patches, as in ViT, .* a ResNetForImageClassification has none such"),
    ("bert", "a BertForPreTraining reads text, it was given images"),
])  # fmt: skip
def test_what_has_no_attention_over_a_picture_is_refused(name, says):
    with pytest.raises(ValueError, match=says):
        draw_image(hub.load(GOLDEN / name), "none.png")


def test_a_checkpoint_without_a_processor_is_refused():
    with pytest.raises(ValueError, match=r"an image needs an image processor, .* no preprocessor_config.json"):
        draw_image(hub.load(GOLDEN / "vit"), "none.png")


@pytest.mark.rotates
def test_the_command_writes_a_page_and_a_figure(run, tmp_path):
    pretrained = load("vit")
    hub.save(pretrained, tmp_path / "vit")
    picture(pretrained).save(tmp_path / "noise.png")
    given = "attention", tmp_path / "vit", "--image", tmp_path / "noise.png"
    code, out, err = run(*given, "--layer", 1)
    folder = tmp_path / "vit/attention"
    assert (code, out, err) == (0, f"{folder / 'attention.html'}\n{folder / 'attention.png'}\n", "")
    assert np.asarray(PIL.Image.open(io.BytesIO((folder / "attention.png").read_bytes())).convert("L")).std() > 1
    assert "noise.png" in (folder / "attention.html").read_text()
    assert run(*given, "--layer", 3)[2] == "error: layer must be between 1 and 2, or count from the end, got 3\n"
    assert run(*given, "a text")[2] == "error: a ViTForImageClassification sees an image alone, it was given text too\n"
    assert run(*given[:2])[2] == "error: attention is drawn of a text, of an --image or of both, got neither\n"
    assert run(*given[:3], tmp_path / "vit/config.json")[2].endswith("it is none or damaged\n")


def test_the_door_is_the_command_s(monkeypatch, tmp_path):
    """A run folder that trains no checkpoint is refused as it is everywhere."""
    (tmp_path / "config.json").write_text('{"type": "here:Recipe"}')
    with pytest.raises(ValueError, match="does not say which checkpoint it trains"):
        image_attention.draw_file(tmp_path, "none.png")
