"""BLIP against transformers: captions, answers, matches, both towers and each side alone, generation, round trips."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


from flax_transformer import hub  # noqa: E402
from tests.hub.oracle import close, compare, forward, padded, part  # noqa: E402
from tests.hub.pictures import images, strengthen  # noqa: E402

pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("blip", "parity", "every class and layer, captions and answers token for token"),
]

CONFIGS = {
    "plain": (
        {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40},
        {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20,
         "image_size": 12, "patch_size": 4},
    ),
    "odd": (
        {"hidden_size": 15, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 22,
         "hidden_act": "relu", "layer_norm_eps": 1e-3},
        {"hidden_size": 10, "num_hidden_layers": 4, "num_attention_heads": 5, "intermediate_size": 9,
         "image_size": 17, "patch_size": 5, "hidden_act": "quick_gelu"},
    ),
    "one head": (
        {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 50},
        {"hidden_size": 14, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 30,
         "image_size": 15, "patch_size": 5, "layer_norm_eps": 1e-3},
    ),
}  # fmt: skip
WRITES, ANSWERS = "BlipForConditionalGeneration", "BlipForQuestionAnswering"
BOTH = (WRITES, ANSWERS, "BlipModel", "BlipForImageTextRetrieval")
MARKS = {"bos_token_id": 1, "eos_token_id": 5, "pad_token_id": 3, "sep_token_id": 2}


def made(kind, name):
    text, vision = CONFIGS[name]
    if kind == ANSWERS:  # its decoder looks at questions as others do at images
        text = {**text, "hidden_size": vision["hidden_size"], "num_attention_heads": vision["num_attention_heads"]}
    shared = {"vocab_size": 50, "max_position_embeddings": 33, "initializer_range": 0.4, **MARKS}
    config = transformers.BlipConfig(
        text_config={**shared, **text}, vision_config={**vision, "initializer_range": 0.3}, projection_dim=7,
        image_text_hidden_size=5, initializer_range=0.4,
    )  # fmt: skip
    config = {"BlipVisionModel": config.vision_config, "BlipTextModel": config.text_config}.get(kind, config)
    torch.manual_seed(0)
    return strengthen(getattr(transformers, kind)(config)).eval()


def texts(padding=True):
    ids = {"input_ids": np.random.default_rng(0).integers(6, 50, (2, 7))}
    return {**ids, "attention_mask": padded([7, 4], 7)} if padding else ids


def pictures(name):
    size = CONFIGS[name][1]["image_size"]
    return {"pixel_values": images(size, size)}


def answers():
    return {"decoder_input_ids": np.random.default_rng(1).integers(6, 50, (2, 5))}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_class_of_both_equals_transformers(tmp_path, name, kind):
    more = answers() if kind == ANSWERS else {}
    compare(made(kind, name), tmp_path, **texts(), **pictures(name), **more)


@pytest.mark.parametrize("name", CONFIGS)
def test_each_side_alone(tmp_path, name):
    compare(made("BlipTextModel", name), tmp_path / "text", **texts())
    compare(made("BlipVisionModel", name), tmp_path / "vision", **pictures(name))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_logits_of_answers_are_those_of_the_decoder(tmp_path, name):
    """Of which transformers itself gives only the loss; and which there see the padding of questions."""
    model, given = made(ANSWERS, name), {**texts(), **pictures(name), **answers()}
    model.save_pretrained(tmp_path)
    got = hub.load(tmp_path)(**given)
    for row, length in enumerate(given["attention_mask"].sum(1)):
        ids, pixels, said = (torch.as_tensor(given[key][[row]]) for key in ("input_ids", *pictures(name), *answers()))
        with torch.no_grad():
            seen = model.vision_model(pixels).last_hidden_state
            read = model.text_encoder(ids[:, :length], encoder_hidden_states=seen).last_hidden_state
            expected = model.text_decoder(said, encoder_hidden_states=read).logits.numpy()
        close("logits", expected, got.logits[row : row + 1], {})
        close("question_embeds", read.numpy(), got.question_embeds[row : row + 1, :length], {})


@pytest.mark.parametrize("name", CONFIGS)
def test_cosines_are_those_without_the_matching_head(tmp_path, name):
    model, given = made("BlipForImageTextRetrieval", name), {**texts(), **pictures(name)}
    model.save_pretrained(tmp_path)
    ours = hub.load(tmp_path)
    three = {**given, "pixel_values": np.concatenate([given["pixel_values"], given["pixel_values"][:1] / 2])}
    for inputs in (given, three):
        expected = forward(model, {**inputs, "use_itm_head": False})["itm_score"]
        got = ours(**inputs)
        np.testing.assert_allclose(got.logits_per_image, expected, rtol=1e-5, atol=1e-6)
        assert (got.itm_score is None) == (inputs is three)
        np.testing.assert_allclose(ours(**texts()).text_embeds @ got.image_embeds.T, expected.T, rtol=1e-5, atol=1e-6)


@pytest.mark.rotates
@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("size", [(16, 24), (8, 20)])
def test_other_resolutions_are_transformers(tmp_path, size, kind):
    model = made(kind, "plain")
    model.save_pretrained(tmp_path)
    inputs = {**texts(), "pixel_values": images(*size), **(answers() if kind == ANSWERS else {})}
    expected = forward(model, {**inputs, "interpolate_pos_encoding": True})
    got = hub.load(tmp_path)(**inputs, output_hidden_states=True)
    for name, value in expected.items():
        close(name, value, part(got, name), inputs)


@pytest.mark.rotates
@pytest.mark.parametrize(
    "settings", [{}, {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.5}, {"repetition_penalty": 1.4}]
)
@pytest.mark.parametrize("kind", [WRITES, "prompted", ANSWERS])
@pytest.mark.parametrize("name", ["plain", "odd"])
def test_generated_tokens_are_transformers(tmp_path, name, kind, settings):
    model = made(WRITES if kind == "prompted" else kind, name)
    model.save_pretrained(tmp_path)
    given = {**pictures(name), **({} if kind == WRITES else texts(False))}
    tensors = {key: torch.as_tensor(value.copy()) for key, value in given.items()}
    expected = model.generate(**tensors, max_new_tokens=15, do_sample=False, **settings).numpy()
    got = hub.load(tmp_path).generate(**given, max_new_tokens=15, **settings)
    np.testing.assert_array_equal(np.asarray(got), expected)


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
def test_as_long_as_nobody_says(tmp_path):
    model = made(WRITES, "plain")
    model.save_pretrained(tmp_path)
    given = pictures("plain")
    expected = model.generate(torch.as_tensor(given["pixel_values"]), do_sample=False).numpy()
    np.testing.assert_array_equal(np.asarray(hub.load(tmp_path).generate(**given)), expected)


def test_an_answer_does_not_hear_of_other_questions(tmp_path):
    """In a batch each is that of transformers to its question alone; there padding is looked at."""
    model = made(ANSWERS, "plain")
    model.save_pretrained(tmp_path)
    given = {**texts(), **pictures("plain")}
    got = np.asarray(hub.load(tmp_path).generate(**given, max_new_tokens=9))
    for row, length in enumerate(given["attention_mask"].sum(1)):
        alone = {"input_ids": given["input_ids"][row : row + 1, :length], "pixel_values": given["pixel_values"][[row]]}
        tensors = {key: torch.as_tensor(value) for key, value in alone.items()}
        expected = model.generate(**tensors, max_new_tokens=9, do_sample=False).numpy()[0]
        np.testing.assert_array_equal(got[row, : len(expected)], expected)
