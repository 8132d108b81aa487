"""SigLIP 2 of images of any shape against transformers: both towers and each alone, padding, the round trip."""

import numpy as np
import PIL.Image
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil  # noqa: E402

from flax_transformer import hub  # noqa: E402
from flax_transformer.hub.fields import Fields  # noqa: E402
from flax_transformer.hub.registry import find_architecture  # noqa: E402
from flax_transformer.objective import SigmoidLoss  # noqa: E402
from flax_transformer.ops.grid_position import resize_places  # noqa: E402
from flax_transformer.task.embedding import choose, embed_images  # noqa: E402
from tests.hub.oracle import compare, compare_made, padded  # noqa: E402
from tests.hub.pictures import strengthen  # noqa: E402
from tests.task.test_tag_pipeline_parity import saved  # noqa: E402

pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("siglip2", "parity", "both towers, every class and layer, images of several shapes"),
]

CONFIGS = {
    "plain": (
        {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40},
        {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20,
         "num_patches": 16, "patch_size": 4}, [(3, 5), (4, 4), (1, 7)],
    ),
    "odd": (
        {"hidden_size": 15, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 22,
         "hidden_act": "gelu", "layer_norm_eps": 1e-3, "projection_size": 10},
        {"hidden_size": 10, "num_hidden_layers": 4, "num_attention_heads": 5, "intermediate_size": 9,
         "num_patches": 9, "patch_size": 3, "num_channels": 1, "hidden_act": "gelu"}, [(11, 1), (2, 6), (3, 3)],
    ),
    "one head": (
        {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 50,
         "projection_size": 14},
        {"hidden_size": 14, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 30,
         "num_patches": 49, "patch_size": 2, "num_channels": 4, "layer_norm_eps": 1e-3}, [(2, 2), (1, 1), (5, 3)],
    ),
    "one position": (
        {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 5},
        {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 33,
         "num_patches": 1, "patch_size": 1, "hidden_act": "relu"}, [(1, 2), (4, 1), (2, 2)],
    ),
}  # fmt: skip
every_config = pytest.mark.parametrize("name", CONFIGS)


def configs(name):
    text, vision, _ = CONFIGS[name]
    return {"vocab_size": 50, "max_position_embeddings": 11, **text}, vision


def texts():
    return {"input_ids": np.random.default_rng(0).integers(3, 50, (3, 9)), "attention_mask": padded([9, 4, 6], 9)}


def patches(name):
    """Return images of the shapes of a case, of which the longest has padding too."""
    _, vision, shapes = CONFIGS[name]
    counts = np.prod(shapes, axis=1)
    most, width = counts.max() + 2, vision["patch_size"] ** 2 * vision.get("num_channels", 3)
    return {
        "pixel_values": np.random.default_rng(1).standard_normal((3, most, width), dtype=np.float32),
        "pixel_attention_mask": (np.arange(most) < counts[:, None]).astype(np.int32),
        "spatial_shapes": np.array(shapes),
    }


def made(kind, config):
    torch.manual_seed(0)
    model = strengthen(getattr(transformers, kind)(config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "position_embedding" in name:
                parameter.add_(torch.randn_like(parameter))
    return model


@every_config
def test_both_towers_equal_transformers(tmp_path, name):
    text, vision = configs(name)
    config = transformers.Siglip2Config(text_config=text, vision_config=vision)
    compare(made("Siglip2Model", config), tmp_path, **texts(), **patches(name))


@every_config
def test_each_tower_alone(tmp_path, name):
    text, vision = configs(name)
    compare(made("Siglip2TextModel", transformers.Siglip2TextConfig(**text)), tmp_path / "text", **texts())
    vision_model = made("Siglip2VisionModel", transformers.Siglip2VisionConfig(**vision))
    compare(vision_model, tmp_path / "vision", **patches(name))


@every_config
def test_a_classifier_looks_at_no_padding(tmp_path, name):
    _, vision = configs(name)
    model = made("Siglip2ForImageClassification", transformers.Siglip2Config(vision_config=vision, num_labels=5))
    compare(model, tmp_path, **patches(name))


@pytest.mark.parametrize("name", ["plain", "odd"])
def test_without_a_mask_padding_is_read(tmp_path, name):
    _, vision = configs(name)
    model = made("Siglip2VisionModel", transformers.Siglip2VisionConfig(**vision)).eval()
    model.save_pretrained(tmp_path)
    given = {**patches(name), "pixel_attention_mask": None}
    with torch.no_grad():
        expected = model(**{key: x if x is None else torch.as_tensor(x) for key, x in given.items()}).pooler_output
    del given["pixel_attention_mask"]
    np.testing.assert_allclose(hub.load(tmp_path)(**given).pooler_output, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (7, 7), (16, 2), (1, 30)])
def test_positions_are_resized_as_torch_does(shape):
    table = np.random.default_rng(0).standard_normal((7, 7, 5), dtype=np.float32)
    grid = torch.tensor(table).permute(2, 0, 1)[None]
    expected = torch.nn.functional.interpolate(grid, shape, mode="bilinear", antialias=True, align_corners=False)
    expected = expected[0].permute(1, 2, 0).reshape(-1, 5).numpy()
    found = np.asarray(resize_places(table, np.array([shape, (2, 3)]), 50))
    np.testing.assert_allclose(found[0, : len(expected)], expected, atol=1e-6)
    np.testing.assert_array_equal(found[0, len(expected) :], np.broadcast_to(found[0, 0], (50 - len(expected), 5)))


def test_the_losses_are_those_of_transformers(tmp_path):
    text, vision = configs("plain")
    model = made("Siglip2Model", transformers.Siglip2Config(text_config=text, vision_config=vision)).eval()
    model.save_pretrained(tmp_path)
    given = {"input_ids": texts()["input_ids"], **patches("plain")}
    with torch.no_grad():
        expected = model(**{key: torch.as_tensor(x) for key, x in given.items()}, return_loss=True).loss.item()
    ours = hub.load(tmp_path).model
    images = {"patches": given["pixel_values"], "shapes": given["spatial_shapes"]}
    total, metrics = SigmoidLoss()(ours, {"inputs": {"tokens": given["input_ids"], **images}})
    np.testing.assert_allclose(total / metrics["count"], expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["Siglip2VisionModel", "Siglip2Model"])
def test_what_is_made_here_opens_in_transformers(tmp_path, kind):
    text, vision = configs("odd")
    whole = transformers.Siglip2Config(text_config=text, vision_config=vision)
    config = whole.vision_config if kind == "Siglip2VisionModel" else whole
    made(kind, config).save_pretrained(tmp_path / "a")
    given = patches("odd") | (texts() if kind == "Siglip2Model" else {})
    compare_made(hub.load(tmp_path / "a").model.cfg, kind, tmp_path / "b", **given)


@pytest.mark.parametrize("kind", ["Siglip2Model", "Siglip2VisionModel", "Siglip2ForImageClassification"])
def test_vectors_of_images_of_any_shape_are_transformers(tmp_path, kind):
    text, vision = configs("plain")
    whole = transformers.Siglip2Config(text_config=text, vision_config=vision, num_labels=5)
    model = made(kind, whole.vision_config if kind == "Siglip2VisionModel" else whole).eval()
    model.save_pretrained(tmp_path)
    processor = Siglip2ImageProcessorPil(patch_size=4, max_num_patches=20)
    processor.save_pretrained(tmp_path)
    rng = np.random.default_rng(0)
    files = [rng.integers(0, 256, (*size, 3), np.uint8) for size in ((40, 13), (21, 90), (17, 17))]
    given = processor([PIL.Image.fromarray(each) for each in files], return_tensors="pt")
    with torch.no_grad():
        if kind == "Siglip2ForImageClassification":
            states, seen = model.vision_model(**given).last_hidden_state, given["pixel_attention_mask"][..., None]
            expected = (states * seen).sum(1) / seen.sum(1)
        else:
            expected = (model.vision_model if kind == "Siglip2Model" else model)(**given).pooler_output
    found = embed_images(hub.load(tmp_path), [PIL.Image.fromarray(each) for each in files])
    if kind == "Siglip2Model":
        expected = expected / expected.norm(dim=-1, keepdim=True)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-4)


def test_texts_are_chosen_for_images_of_any_shape(tmp_path):
    """By the probabilities that its own scores give, without padding hidden in texts."""
    text, vision = configs("plain")
    model = made("Siglip2Model", transformers.Siglip2Config(text_config=text, vision_config=vision))
    folder = saved(tmp_path, model)
    Siglip2ImageProcessorPil(patch_size=4, max_num_patches=20).save_pretrained(folder)
    pretrained, image = hub.load(folder), PIL.Image.fromarray(np.full((40, 13, 3), 90, np.uint8))
    said = ["a game", "may", "one of five"]
    (found,) = choose(pretrained, [image], said)
    ids = pretrained.tokenizer(said, max_length=11, truncate=True, padding="max_length")["input_ids"]
    scores = np.asarray(pretrained(input_ids=ids, **pretrained.processor(image)).logits_per_image)[0]
    expected = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    assert {each.name for each in found} == {*said}
    np.testing.assert_allclose([each.probability for each in found], sorted(expected, reverse=True), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"num_patches": 12}, "num_patches as the square of a whole number, it is 12"),
        ({"vision_use_head": False}, "vision_use_head"),
    ],
)
def test_what_is_not_supported_is_said(change, rule):
    with pytest.raises(ValueError, match=rule):
        find_architecture("Siglip2VisionModel")[1].config(Fields.of(change))


def test_patches_that_do_not_fit_are_refused(tmp_path):
    _, vision = configs("plain")
    made("Siglip2VisionModel", transformers.Siglip2VisionConfig(**vision)).save_pretrained(tmp_path)
    ours, given = hub.load(tmp_path), patches("plain")
    with pytest.raises(ValueError, match="a patch must have 4×4×3 numbers, got 47"):
        ours(**{**given, "pixel_values": given["pixel_values"][..., 1:]})
    with pytest.raises(ValueError, match=r"spatial_shapes must be of the images, \[3, 2\], got \[2, 2\]"):
        ours(**{**given, "spatial_shapes": given["spatial_shapes"][1:]})
    with pytest.raises(ValueError, match=r"patches \[B, P, F\] beside spatial_shapes, got \[3, 3, 8, 8\]"):
        ours(**{**given, "pixel_values": np.zeros((3, 3, 8, 8), np.float32)})
