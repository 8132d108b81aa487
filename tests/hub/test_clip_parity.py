"""CLIP against transformers: both towers together and each alone, odd sizes, padding, and the round trip."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


from flax_transformer import hub  # noqa: E402
from tests.hub.oracle import close, compare, forward, padded, part  # noqa: E402
from tests.hub.pictures import images, strengthen  # noqa: E402

pytestmark = [pytest.mark.parity, pytest.mark.proves("clip", "parity", "both towers, every class and layer")]

END = 48
CONFIGS = {
    "plain": (
        {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40},
        {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20,
         "image_size": 12, "patch_size": 4},
    ),
    "odd": (
        {"hidden_size": 15, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 22,
         "hidden_act": "gelu", "layer_norm_eps": 1e-3},
        {"hidden_size": 10, "num_hidden_layers": 4, "num_attention_heads": 5, "intermediate_size": 9,
         "image_size": 17, "patch_size": 5, "num_channels": 1, "hidden_act": "gelu"},
    ),
    "old end": (
        {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 50,
         "eos_token_id": 2},
        {"hidden_size": 14, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 30,
         "image_size": 15, "patch_size": 5, "num_channels": 4, "layer_norm_eps": 1e-3},
    ),
}  # fmt: skip


def configs(name, **changes):
    text, vision = CONFIGS[name]
    ids = {"vocab_size": 50, "max_position_embeddings": 11, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": END}
    return {**ids, **text, "projection_dim": 7, **changes}, {**vision, "projection_dim": 7, **changes}


def texts():
    """Rows that end at different places; what comes after may be an end token again."""
    ids = np.random.default_rng(0).integers(3, END, (3, 9))
    lengths = [9, 4, 6]
    for row, length in enumerate(lengths):
        ids[row, length - 1] = END
        ids[row, length:] = [END, 0, 0][row]
    return {"input_ids": ids, "attention_mask": padded(lengths, 9)}


def pictures(vision):
    return {"pixel_values": images(vision["image_size"], vision["image_size"], vision.get("num_channels", 3))}


def made(kind, config):
    torch.manual_seed(0)
    return strengthen(getattr(transformers, kind)(config))


@pytest.mark.parametrize("name", CONFIGS)
def test_both_towers_equal_transformers(tmp_path, name):
    text, vision = configs(name)
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=7)
    compare(made("CLIPModel", config), tmp_path, **texts(), **pictures(vision))


@pytest.mark.parametrize("kind", ["CLIPTextModel", "CLIPTextModelWithProjection"])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_tower_of_texts_alone(tmp_path, name, kind):
    compare(made(kind, transformers.CLIPTextConfig(**configs(name)[0])), tmp_path, **texts())


@pytest.mark.parametrize("kind", ["CLIPVisionModel", "CLIPVisionModelWithProjection"])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_tower_of_pictures_alone(tmp_path, name, kind):
    vision = configs(name)[1]
    compare(made(kind, transformers.CLIPVisionConfig(**vision)), tmp_path, **pictures(vision))


def test_one_side_is_what_both_give_of_it(tmp_path):
    text, vision = configs("plain")
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=7)
    made("CLIPModel", config).save_pretrained(tmp_path)
    ours = hub.load(tmp_path)
    both = ours(**texts(), **pictures(vision))
    alone = ours(**texts()), ours(**pictures(vision))
    assert [one.logits_per_text for one in alone] == [None, None]
    for one, name in zip(alone, ("text_embeds", "image_embeds"), strict=True):
        np.testing.assert_allclose(one[name], both[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("size", [(16, 24), (8, 20)])
def test_other_resolutions_are_transformers(tmp_path, size):
    model = made("CLIPVisionModel", transformers.CLIPVisionConfig(**configs("plain")[1]))
    model.save_pretrained(tmp_path)
    inputs = {"pixel_values": images(*size)}
    expected = forward(model.eval(), {**inputs, "interpolate_pos_encoding": True})
    got = hub.load(tmp_path)(**inputs, output_hidden_states=True)
    for name, value in expected.items():
        close(name, value, part(got, name), inputs)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_classifier_keeps_all_that_it_reads(tmp_path, name):
    _, vision = configs(name)
    model = made("CLIPForImageClassification", transformers.CLIPConfig(vision_config=vision, num_labels=5))
    compare(model, tmp_path, **pictures(vision))


@pytest.mark.rotates
def test_a_classifier_begins_with_the_tower_of_pictures(tmp_path):
    text, vision = configs("plain")
    towers = made("CLIPModel", transformers.CLIPConfig(text_config=text, vision_config=vision))
    towers.save_pretrained(tmp_path)
    lenient = hub.Lenient(
        architecture="CLIPForImageClassification", config={"num_labels": 5}, initialise=("^classifier",)
    )
    ours, given = hub.load(tmp_path, lenient=lenient), pictures(vision)
    expected = hub.load(tmp_path)(**given).vision_model_output.last_hidden_state
    np.testing.assert_array_equal(ours(**given).last_hidden_state, expected)
    assert ours(**given).logits.shape == (2, 5)
