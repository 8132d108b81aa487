"""ViLT against transformers: every class, odd sizes, padding on either side, other resolutions, and the round trip.

transformers shuffles the patches of an image that fills its place and repeats padding at random; here its draws are
pinned to the order that there is, and what comes of padding is not compared.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from flax_transformer import hub  # noqa: E402
from tests.hub.oracle import copied, forward, padded, random_ids, same_tensors  # noqa: E402
from tests.hub.pictures import compare, images, make, strengthen  # noqa: E402

pytestmark = [pytest.mark.parity, pytest.mark.proves("vilt", "parity", "every class and layer, padding, resolutions")]

CONFIGS = {
    "plain": {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
              "image_size": 16, "patch_size": 4},
    "odd": {"hidden_size": 15, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 22,
            "image_size": 15, "patch_size": 5, "num_channels": 1, "hidden_act": "relu", "qkv_bias": False,
            "type_vocab_size": 3, "max_position_embeddings": 9},
    "one head": {"hidden_size": 14, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 50,
                 "image_size": 12, "patch_size": 6, "layer_norm_eps": 1e-3, "modality_type_vocab_size": 4},
}  # fmt: skip
KINDS = (
    "ViltModel", "ViltForMaskedLM", "ViltForQuestionAnswering", "ViltForImageAndTextRetrieval",
    "ViltForTokenClassification",
)  # fmt: skip


@pytest.fixture(autouse=True)
def in_order(monkeypatch):
    """Let transformers take the patches of an image in their order, and its padding too."""
    take = lambda weights, count, replacement=False: torch.arange(int(count)) % len(weights)  # noqa: E731
    monkeypatch.setattr(torch, "multinomial", take)


def made(kind, name, **more):
    return make(kind, "ViltConfig", vocab_size=50, pad_token_id=0, num_labels=5, **{**CONFIGS[name], **more})


def texts(types=2):
    ids = random_ids(50, 2, 9)
    return {"input_ids": ids, "attention_mask": padded([9, 6], 9), "token_type_ids": ids % types}


def given(name, height=None, width=None):
    side = CONFIGS[name]["image_size"]
    values = images(height or side, width or side, CONFIGS[name].get("num_channels", 3))
    mask = np.ones((2, *values.shape[-2:]), np.int64)
    return {**texts(CONFIGS[name].get("type_vocab_size", 2)), "pixel_values": values, "pixel_mask": mask}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_class_equals_transformers(tmp_path, name, kind):
    compare(made(kind, name), tmp_path, **given(name))


@pytest.mark.parametrize("size", [(16, 24), (9, 31), (40, 8)])
def test_other_resolutions_are_transformers(tmp_path, size):
    compare(made("ViltForQuestionAnswering", "plain"), tmp_path, **given("plain", *size))


@pytest.mark.parametrize("parts", [((16, 24), (8, 20)), ((16, 12), (4, 24)), ((7, 24), (16, 24)), ((16, 5), (16, 24))])
def test_padding_beside_a_picture_is_not_seen(tmp_path, parts):
    inputs = given("plain", 16, 24)
    for row, (height, width) in enumerate(parts):
        inputs["pixel_mask"][row, height:], inputs["pixel_mask"][row, :, width:] = 0, 0
    model = made("ViltModel", "plain").eval()
    model.save_pretrained(tmp_path)
    expected = forward(model, inputs)
    got = hub.load(tmp_path)(**inputs, output_hidden_states=True)
    np.testing.assert_allclose(got.pooler_output, expected["pooler_output"], rtol=1e-5, atol=2e-6)
    there = inputs["pixel_mask"][:, ::4, ::4].reshape(2, -1) != 0
    pairs = [(got.last_hidden_state, expected["last_hidden_state"])]
    for one, other in [*pairs, *zip(got.hidden_states, expected["hidden_states"], strict=True)]:
        for row, length in enumerate([9, 6]):
            mine = np.asarray(one)[row]
            places = [*range(length), 9, *(10 + np.flatnonzero(there[row]))]
            theirs = [*range(length), *range(9, 10 + there[row].sum())]
            np.testing.assert_allclose(mine[places], other[row][theirs], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pictures", [1, 2, 3])
def test_several_pictures_of_a_text(tmp_path, pictures):
    model = made("ViltForImagesAndTextClassification", "plain", num_images=pictures, modality_type_vocab_size=4).eval()
    theirs, back = tmp_path / "theirs", tmp_path / "back"
    model.save_pretrained(theirs)
    each = [images(16, 16, seed=i) for i in range(pictures)]
    inputs = {**texts(), "pixel_values": np.stack(each, axis=1), "pixel_mask": np.ones((2, pictures, 16, 16), int)}
    ours = hub.load(theirs)
    got = ours(**inputs, output_hidden_states=True)
    with torch.no_grad():
        expected = model(**{name: torch.as_tensor(value) for name, value in inputs.items()}, output_hidden_states=True)
    np.testing.assert_allclose(got.logits, expected.logits, rtol=1e-5, atol=1e-6)
    shown = [[*range(9), *range(9, 26)], [*range(6), *range(9, 26)]]
    for i, states in enumerate(expected.hidden_states):
        for mine, other in zip(got.hidden_states, states, strict=True):
            for row, places in enumerate(shown):
                np.testing.assert_allclose(mine[row, i][np.array(places)], other[row][places], rtol=1e-5, atol=1e-5)
    hub.save(ours, back)
    same_tensors(theirs, back)
    again = copied(type(model).from_pretrained(back))
    with torch.no_grad():
        logits = again(**{name: torch.as_tensor(value) for name, value in inputs.items()}).logits
    np.testing.assert_array_equal(logits, expected.logits)


def test_a_model_without_a_pooler(tmp_path):
    torch.manual_seed(1)
    config = transformers.ViltConfig(vocab_size=50, **CONFIGS["plain"])
    model = strengthen(transformers.ViltModel(config, add_pooling_layer=False)).eval()
    model.save_pretrained(tmp_path)
    inputs = given("plain")
    expected = forward(model, inputs)["last_hidden_state"]
    ours = hub.load(tmp_path)
    assert ours(**inputs).pooler_output is None
    np.testing.assert_allclose(ours(**inputs).last_hidden_state[:1], expected[:1], rtol=1e-5, atol=1e-5)


def test_the_bias_of_old_files_is_read(tmp_path):
    from safetensors.numpy import load_file, save_file

    made("ViltForMaskedLM", "plain").save_pretrained(tmp_path)
    file, inputs = tmp_path / "model.safetensors", given("plain")
    expected = hub.load(tmp_path)(**inputs).logits
    tensors = load_file(file)
    save_file({name.replace("mlm_score.decoder.bias", "mlm_score.bias"): each for name, each in tensors.items()}, file)
    np.testing.assert_array_equal(hub.load(tmp_path)(**inputs).logits, expected)


def test_parameters_are_as_many_as_transformers_has():
    import jax

    from flax_transformer.models.multimodal.vilt import vilt_b32, vilt_b32_vqa
    from flax_transformer.models.preset import abstract

    for kind, config, spare in (("MaskedLM", vilt_b32(), 768 * 769), ("QuestionAnswering", vilt_b32_vqa(), 0)):
        with torch.device("meta"):
            theirs = getattr(transformers, f"ViltFor{kind}")(transformers.ViltConfig(num_labels=3_129))
        count = sum(leaf.size for leaf in jax.tree.leaves(abstract(config)))
        assert count == sum(parameter.numel() for parameter in theirs.parameters()) - spare, kind
