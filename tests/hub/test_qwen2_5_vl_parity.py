"""Qwen2.5-VL against transformers: encoders with windows, in turns and not, generation, and the round trip."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from flax import nnx  # noqa: E402

from flax_transformer import hub  # noqa: E402
from tests.hub.oracle import compare, forward  # noqa: E402
from tests.hub.pictures import strengthen  # noqa: E402
from tests.hub.test_qwen2_vl_parity import MARKS, TEXT, inputs, words  # noqa: E402

pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("qwen2_5_vl", "parity", "windows of images of any sizes, every layer, generated tokens"),
]

SECTIONS = {"rope_type": "default", "rope_theta": 1_000_000.0}
CONFIGS = {
    "turns": (
        {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 40, "rope_parameters": {**SECTIONS, "mrope_section": [1, 1, 1]}},
        {"hidden_size": 16, "num_heads": 2, "depth": 4, "intermediate_size": 21, "patch_size": 4, "window_size": 16,
         "fullatt_block_indexes": [1, 3]},
    ),
    "last": (
        {"hidden_size": 30, "num_hidden_layers": 1, "num_attention_heads": 3, "num_key_value_heads": 1,
         "intermediate_size": 21, "tie_word_embeddings": True,
         "rope_parameters": {**SECTIONS, "mrope_section": [1, 2, 2]}},
        {"hidden_size": 12, "num_heads": 3, "depth": 3, "intermediate_size": 10, "patch_size": 3, "in_channels": 1,
         "spatial_merge_size": 3, "temporal_patch_size": 1, "window_size": 9, "fullatt_block_indexes": [2],
         "hidden_act": "gelu"},
    ),
    "windows alone": (
        {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 2,
         "intermediate_size": 50, "rope_parameters": {**SECTIONS, "mrope_section": [2, 3, 3]}},
        {"hidden_size": 20, "num_heads": 5, "depth": 2, "intermediate_size": 30, "patch_size": 5,
         "spatial_merge_size": 1, "window_size": 11, "fullatt_block_indexes": []},
    ),
    "whole": (
        {"hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
         "intermediate_size": 30, "rope_parameters": {**SECTIONS, "mrope_section": [3, 4, 2]}},
        {"hidden_size": 24, "num_heads": 1, "depth": 2, "intermediate_size": 8, "patch_size": 2, "in_channels": 4,
         "temporal_patch_size": 3, "fullatt_block_indexes": [0, 1]},
    ),
}  # fmt: skip
ROWS = [
    [[(1, 3, 3), (1, 1, 1)], [(1, 5, 2)]],
    [[(1, 1, 2)], [], [(1, 2, 1), (1, 4, 3)]],
]


def made(name):
    text, vision = CONFIGS[name]
    torch.manual_seed(0)
    spread = {"initializer_range": 0.2}  # of 0.3 its logits are 0.8e-5 from what it has itself in float64
    config = transformers.Qwen2_5_VLConfig(
        text_config={**TEXT, **text, **spread},
        vision_config={**vision, "out_hidden_size": text["hidden_size"], **spread}, **MARKS,
        tie_word_embeddings=text.get("tie_word_embeddings", False),
    )  # fmt: skip
    return strengthen(transformers.Qwen2_5_VLForConditionalGeneration(config)).eval()


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("name", CONFIGS)
def test_all_positions_equal_those_of_qwen2_5(tmp_path, name, rows):
    compare(made(name), tmp_path, **inputs(CONFIGS[name][1], ROWS[rows]))


@pytest.mark.parametrize("name", CONFIGS)
def test_texts_alone_equal_those_of_qwen2_5(tmp_path, name):
    compare(made(name), tmp_path, **words())


@pytest.mark.rotates
@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}])
@pytest.mark.parametrize("name", CONFIGS)
def test_generated_tokens_are_those_of_qwen2_5(tmp_path, name, settings):
    model, given = made(name), inputs(CONFIGS[name][1], ROWS[1])
    model.save_pretrained(tmp_path)
    tensors = {key: torch.as_tensor(value) for key, value in given.items()}
    expected = model.generate(**tensors, max_new_tokens=12, do_sample=False, **settings).numpy()
    got = hub.load(tmp_path).generate(**given, max_new_tokens=12, **settings)
    np.testing.assert_array_equal(np.asarray(got), expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_made_here_opens_as_a_qwen2_5(tmp_path, name):
    made(name).save_pretrained(tmp_path / "theirs")
    config, given = hub.load(tmp_path / "theirs").model.cfg, inputs(CONFIGS[name][1], ROWS[0])
    marks = {key: value for key, value in MARKS.items() if key != "image_token_id"}
    ours = hub.wrap(config.build(nnx.Rngs(3)), "Qwen2_5_VLForConditionalGeneration", **marks)
    hub.save(ours, tmp_path / "ours")
    theirs, loading = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not {*loading["missing_keys"], *loading["unexpected_keys"]}, loading
    expected, real = forward(theirs.eval(), given)["logits"], given["attention_mask"] != 0
    assert np.abs(np.asarray(ours(**given).logits) - expected)[real].max() <= 1e-5 * np.abs(expected[real]).max()
