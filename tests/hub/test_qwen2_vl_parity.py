"""Qwen2-VL against transformers: several images of different sizes in a row, rows of different numbers of images, texts
alone, generation, and the round trip.
"""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from flax import nnx  # noqa: E402
from safetensors.numpy import load_file, save_file  # noqa: E402

from flax_transformer import hub  # noqa: E402
from flax_transformer.models.multimodal.interleaved import InterleavedConfig  # noqa: E402
from tests.hub.oracle import compare, forward  # noqa: E402
from tests.hub.pictures import strengthen  # noqa: E402

pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("qwen2_vl", "parity", "images of any sizes in rows, every layer, generated tokens"),
]

IMAGE, VIDEO, BEGIN, END, PAD = 45, 46, 47, 48, 3
MARKS = {
    "image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": BEGIN, "vision_end_token_id": END,
}  # fmt: skip
TEXT = {"vocab_size": 50, "max_position_embeddings": 64, "pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2}
CONFIGS = {
    "plain": (
        {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 40, "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 1]}},
        {"embed_dim": 16, "num_heads": 2, "depth": 2, "mlp_ratio": 2, "patch_size": 4},
    ),
    "tied": (
        {"hidden_size": 30, "num_hidden_layers": 1, "num_attention_heads": 3, "num_key_value_heads": 3,
         "intermediate_size": 21, "hidden_act": "gelu", "rms_norm_eps": 1e-3, "tie_word_embeddings": True,
         "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [1, 2, 2]}},
        {"embed_dim": 12, "num_heads": 3, "depth": 3, "mlp_ratio": 4, "patch_size": 3, "in_channels": 1,
         "spatial_merge_size": 3, "temporal_patch_size": 1, "hidden_act": "relu"},
    ),
    "windows": (
        {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1,
         "intermediate_size": 50, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1,
         "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0, "mrope_section": [2, 3, 3]}},
        {"embed_dim": 20, "num_heads": 5, "depth": 1, "mlp_ratio": 3, "patch_size": 5, "spatial_merge_size": 1,
         "hidden_act": "gelu"},
    ),
    "yarn": (
        {"hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
         "intermediate_size": 30,
         "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
                             "rope_theta": 1000.0, "mrope_section": [3, 4, 2]}},
        {"embed_dim": 24, "num_heads": 1, "depth": 2, "mlp_ratio": 1, "patch_size": 2, "in_channels": 4,
         "temporal_patch_size": 3},
    ),
}  # fmt: skip
ROWS = {
    "several": [[(1, 2, 3), (1, 1, 1)], [(1, 3, 1)]],
    "different numbers": [[(1, 1, 2)], [], [(1, 2, 1), (1, 1, 1), (1, 1, 4)]],
    "one": [[(1, 2, 2)]],
}
"""Grids of the images of each row, in squares of patches."""


def made(name, **changes):
    text, vision = CONFIGS[name]
    torch.manual_seed(0)
    spread = {"initializer_range": 0.3}
    tied = text.get("tie_word_embeddings", False)
    config = transformers.Qwen2VLConfig(
        text_config={**TEXT, **text, **spread, **changes},
        vision_config={**vision, "hidden_size": text["hidden_size"], **spread}, **MARKS, tie_word_embeddings=tied,
    )  # fmt: skip
    config.text_config.rope_parameters.setdefault("rope_theta", 1_000_000.0)
    return strengthen(transformers.Qwen2VLForConditionalGeneration(config)).eval()


def named(name, rows, *, padding=True):
    """Return inputs of a config and of rows by their names."""
    return inputs(CONFIGS[name][1], ROWS[rows], padding=padding)


def inputs(vision, rows, *, padding=True):
    """Return tokens with marks around each image, padded on the left, and the images' patches."""
    merge, draw = vision.get("spatial_merge_size", 2), np.random.default_rng(0)
    texts, grids = [], []
    for images in rows:
        row = draw.integers(4, 40, draw.integers(1, 4)).tolist()
        for times, high, wide in images:
            row += [BEGIN, *[IMAGE] * (high * wide), END, *draw.integers(4, 40, draw.integers(1, 3)).tolist()]
            grids.append((times, high * merge, wide * merge))
        texts.append([*row, 7])
    length = max(map(len, texts))
    ids = np.array([[PAD] * (length - len(row)) + row for row in texts])
    mask = np.array([[0] * (length - len(row)) + [1] * len(row) for row in texts])
    width = vision.get("in_channels", 3) * vision.get("temporal_patch_size", 2) * vision["patch_size"] ** 2
    pixels = draw.standard_normal((int(np.prod(grids, axis=-1).sum()), width), dtype=np.float32)
    given = {"input_ids": ids, "attention_mask": mask, "pixel_values": pixels, "image_grid_thw": np.array(grids)}
    given |= {"mm_token_type_ids": (ids == IMAGE).astype(np.int64)}
    return given if padding else {key: value for key, value in given.items() if key != "attention_mask"}


def words(length=9):
    ids = {"input_ids": np.random.default_rng(0).integers(4, 40, (2, length))}
    ids["attention_mask"] = (np.arange(length)[None] >= np.array([[0], [4]])).astype(np.int64)
    return ids


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", CONFIGS)
def test_all_positions_equal_transformers(tmp_path, name, rows):
    compare(made(name), tmp_path, **named(name, rows))


@pytest.mark.parametrize("name", CONFIGS)
def test_texts_alone_equal_transformers(tmp_path, name):
    compare(made(name), tmp_path, **words())


def test_rows_of_one_length_need_no_mask(tmp_path):
    compare(made("plain"), tmp_path, **named("plain", "one", padding=False))


@pytest.mark.parametrize("rows", ["several", "different numbers"])
@pytest.mark.parametrize("name", CONFIGS)
def test_outputs_of_images_equal_transformers(tmp_path, name, rows):
    model, given = made(name), named(name, rows)
    model.save_pretrained(tmp_path)
    ours = hub.load(tmp_path)
    with torch.no_grad():
        found = model.model.visual(torch.as_tensor(given["pixel_values"]), torch.as_tensor(given["image_grid_thw"]))
    laid = ours.architecture.prepare(given, ours.config)
    outputs = ours.model.vision(laid["pixel_values"], laid["image_grid_thw"])
    counts = (given["input_ids"] == IMAGE).sum(-1)
    got = np.concatenate([np.asarray(row)[:count] for row, count in zip(outputs, counts, strict=True)])
    expected = found.pooler_output.numpy()
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.rotates
@pytest.mark.parametrize(
    "settings", [{}, {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.5}, {"repetition_penalty": 1.4}]
)
@pytest.mark.parametrize("rows", [*ROWS, "texts"])
@pytest.mark.parametrize("name", CONFIGS)
def test_generated_tokens_are_transformers(tmp_path, name, rows, settings):
    model = made(name)
    model.save_pretrained(tmp_path)
    given = words() if rows == "texts" else named(name, rows)
    tensors = {key: torch.as_tensor(value) for key, value in given.items()}
    expected = model.generate(**tensors, max_new_tokens=12, do_sample=False, **settings).numpy()
    got = hub.load(tmp_path).generate(**given, max_new_tokens=12, **settings)
    np.testing.assert_array_equal(np.asarray(got), expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_made_here_opens_in_transformers(tmp_path, name):
    made(name).save_pretrained(tmp_path / "theirs")
    config = hub.load(tmp_path / "theirs").model.cfg
    assert isinstance(config, InterleavedConfig)
    given = named(name, "different numbers")
    marks = {key: value for key, value in MARKS.items() if key != "image_token_id"}
    ours = hub.wrap(config.build(nnx.Rngs(3)), "Qwen2VLForConditionalGeneration", **marks)
    hub.save(ours, tmp_path / "ours")
    theirs, loading = transformers.Qwen2VLForConditionalGeneration.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not {*loading["missing_keys"], *loading["unexpected_keys"]}, loading
    expected, real = forward(theirs.eval(), given)["logits"], given["attention_mask"] != 0
    error = np.abs(np.asarray(ours(**given).logits) - expected)[real].max()
    assert error <= 1e-5 * np.abs(expected[real]).max()


def test_files_of_the_hub_and_of_today_are_read_alike(tmp_path):
    """Of today's the text's fields are in an object, and tensors may have its modules' names."""
    model, given = made("plain"), named("plain", "several")
    model.save_pretrained(tmp_path / "today")
    today = hub.load(tmp_path / "today")
    config = json.loads((tmp_path / "today" / "config.json").read_text())
    flat = {**config.pop("text_config"), **config}
    rope = flat.pop("rope_parameters")
    flat |= {"rope_theta": rope["rope_theta"], "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 1]}}
    flat["vision_config"] = {**flat["vision_config"], "model_type": "qwen2_vl"}
    flat = {key: value for key, value in flat.items() if key != "layer_types"}
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_text(json.dumps({**flat, "model_type": "qwen2_vl"}))
    tensors = load_file(tmp_path / "today" / "model.safetensors")
    assert any(name.startswith("visual.") for name in tensors)
    save_file(tensors, tmp_path / "old" / "model.safetensors", metadata={"format": "pt"})
    old = hub.load(tmp_path / "old")
    assert old.model.cfg == today.model.cfg
    theirs = transformers.Qwen2VLForConditionalGeneration.from_pretrained(tmp_path / "old").eval()
    np.testing.assert_array_equal(old(**given).logits, today(**given).logits)
    real = given["attention_mask"] != 0
    expected = forward(theirs, given)["logits"][real]
    assert np.abs(np.asarray(old(**given).logits)[real] - expected).max() <= 1e-5 * np.abs(expected).max()
    renamed = {
        ("model." + name if name.startswith("visual.") else name.replace("model.", "model.language_model.")): tensor
        for name, tensor in tensors.items()
    }
    save_file(renamed, tmp_path / "old" / "model.safetensors", metadata={"format": "pt"})
    np.testing.assert_array_equal(hub.load(tmp_path / "old")(**given).logits, today(**given).logits)
