"""SigLIP against transformers: both towers together and each alone, odd sizes, padding, and the round trip."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


from flax_transformer import hub  # noqa: E402
from flax_transformer.objective import SigmoidLoss  # noqa: E402
from tests.hub.oracle import compare, padded  # noqa: E402
from tests.hub.pictures import images, strengthen  # noqa: E402

pytestmark = [pytest.mark.parity, pytest.mark.proves("siglip", "parity", "both towers, every class and layer")]

CONFIGS = {
    "plain": (
        {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40},
        {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20,
         "image_size": 12, "patch_size": 4},
    ),
    "odd": (
        {"hidden_size": 15, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 22,
         "hidden_act": "gelu", "layer_norm_eps": 1e-3, "projection_size": 10},
        {"hidden_size": 10, "num_hidden_layers": 4, "num_attention_heads": 5, "intermediate_size": 9,
         "image_size": 17, "patch_size": 5, "num_channels": 1, "hidden_act": "gelu"},
    ),
    "one head": (
        {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 50,
         "projection_size": 14},
        {"hidden_size": 14, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 30,
         "image_size": 15, "patch_size": 5, "num_channels": 4, "layer_norm_eps": 1e-3},
    ),
}  # fmt: skip


def configs(name):
    text, vision = CONFIGS[name]
    return {"vocab_size": 50, "max_position_embeddings": 11, **text}, vision


def texts():
    return {"input_ids": np.random.default_rng(0).integers(3, 50, (3, 9)), "attention_mask": padded([9, 4, 6], 9)}


def pictures(vision):
    return {"pixel_values": images(vision["image_size"], vision["image_size"], vision.get("num_channels", 3))}


def made(kind, config):
    torch.manual_seed(0)
    return strengthen(getattr(transformers, kind)(config))


@pytest.mark.parametrize("name", CONFIGS)
def test_both_towers_equal_transformers(tmp_path, name):
    text, vision = configs(name)
    config = transformers.SiglipConfig(text_config=text, vision_config=vision)
    compare(made("SiglipModel", config), tmp_path, **texts(), **pictures(vision))


@pytest.mark.parametrize("name", CONFIGS)
def test_each_tower_alone(tmp_path, name):
    text, vision = configs(name)
    compare(made("SiglipTextModel", transformers.SiglipTextConfig(**text)), tmp_path / "text", **texts())
    vision_model = made("SiglipVisionModel", transformers.SiglipVisionConfig(**vision))
    compare(vision_model, tmp_path / "vision", **pictures(vision))


def test_the_losses_are_those_of_transformers(tmp_path):
    """Of pairs as many as texts, without padding."""
    text, vision = configs("plain")
    ids = {"input_ids": texts()["input_ids"]}
    pixels = {"pixel_values": images(12, 12, rows=3)}
    model = made("SiglipModel", transformers.SiglipConfig(text_config=text, vision_config=vision))
    ours, _ = compare(model, tmp_path, **ids, **pixels)
    with torch.no_grad():
        given = {name: torch.as_tensor(value) for name, value in (ids | pixels).items()}
        expected = model(**given, return_loss=True).loss.item()
    inputs = {"tokens": ids["input_ids"], "images": np.moveaxis(pixels["pixel_values"], 1, -1)}
    total, metrics = SigmoidLoss()(ours.model, {"inputs": inputs})
    np.testing.assert_allclose(total / metrics["count"], expected, rtol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_classifier_keeps_all_that_it_reads(tmp_path, name):
    _, vision = configs(name)
    model = made("SiglipForImageClassification", transformers.SiglipConfig(vision_config=vision, num_labels=5))
    compare(model, tmp_path, **pictures(vision))


def test_a_classifier_begins_with_the_tower_of_pictures(tmp_path):
    text, vision = configs("plain")
    towers = made("SiglipModel", transformers.SiglipConfig(text_config=text, vision_config=vision))
    towers.save_pretrained(tmp_path)
    lenient = hub.Lenient(
        architecture="SiglipForImageClassification", config={"num_labels": 5}, initialise=("^classifier",)
    )
    ours, given = hub.load(tmp_path, lenient=lenient), pictures(vision)
    expected = hub.load(tmp_path)(**given).vision_model_output.last_hidden_state
    np.testing.assert_array_equal(ours(**given).last_hidden_state, expected)
    assert ours(**given).logits.shape == (2, 5)
