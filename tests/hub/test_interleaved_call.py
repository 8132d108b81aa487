"""Images among tokens, by Hugging Face's names: laid out in rows, inside transforms, and what is refused."""

from pathlib import Path

import jax
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.hub.interleaved_call import laid_out
from flax_transformer.hub.load import Lenient

GOLDEN = Path(__file__).parent / "golden/qwen2_vl"


@pytest.fixture(scope="module")
def pretrained():
    return hub.load(GOLDEN)


@pytest.fixture(scope="module")
def given():
    with np.load(GOLDEN / "expected.npz") as arrays:
        return {name.removeprefix("in_"): arrays[name] for name in arrays if name.startswith("in_")}


@pytest.fixture(scope="module")
def flat(given):
    """Return images one after another, as a processor gives them."""
    counts, pixels = given["image_grid_thw"].prod(-1).sum(-1), given["pixel_values"]
    grids = given["image_grid_thw"].reshape(-1, 3)
    return {
        **given, "image_grid_thw": grids[grids[:, 0] > 0],
        "pixel_values": np.concatenate([row[:count] for row, count in zip(pixels, counts, strict=True)]),
    }  # fmt: skip


@pytest.mark.rotates
def test_images_in_a_row_or_in_rows_are_the_same(pretrained, given, flat):
    np.testing.assert_allclose(pretrained(**flat).logits, pretrained(**given).logits, rtol=1e-5, atol=1e-5)
    both = [np.asarray(pretrained.generate(**each, max_new_tokens=5)) for each in (given, flat)]
    np.testing.assert_array_equal(*both)
    inside = jax.jit(lambda pretrained, given: pretrained(**given).logits)(pretrained, given)
    np.testing.assert_allclose(inside, pretrained(**given).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.rotates
def test_streamed_and_searched_tokens_are_those_of_generate(pretrained, flat):
    from flax_transformer.hub.generate import search_beams, stream_tokens

    length = flat["input_ids"].shape[1]
    whole = np.asarray(pretrained.generate(**flat, max_new_tokens=4))[:, length:]
    streamed = np.concatenate(list(stream_tokens(pretrained, **flat, max_new_tokens=4)), axis=1)
    np.testing.assert_array_equal(streamed[:, : whole.shape[1]], whole)
    beams = np.asarray(pretrained.generate(**flat, max_new_tokens=4, num_beams=2))[:, length:]
    found, _ = search_beams(pretrained, **flat, max_new_tokens=4, num_beams=2)
    np.testing.assert_array_equal(found.tokens[:, 0, : beams.shape[1]], beams)


def test_rows_are_filled_up_to_few_sizes():
    grids = np.array([[1, 2, 2], [1, 4, 4], [1, 2, 4], [1, 2, 2]])
    pixels = np.arange(4 + 16 + 8 + 4, dtype=np.float32)[:, None] + 1
    laid, found = laid_out(pixels, grids, np.array([5, 0, 3]), 2)
    assert laid.shape == (3, 32, 1)
    assert found.tolist() == [[*grids[:2].tolist()], [[0] * 3] * 2, grids[2:].tolist()]
    assert laid[0, :20, 0].tolist() == list(range(1, 21))
    assert laid[2, :12, 0].tolist() == list(range(21, 33))
    assert laid[0, 20:].sum() == laid[1].sum() == laid[2, 12:].sum() == 0
    assert laid_out(np.zeros((4, 1), np.float32), grids[:1], np.array([1]), 2)[1].shape == (1, 1, 3)


REFUSED = [
    ({"image_grid_thw": None}, "an image is given as pixel_values and image_grid_thw, got one without the other"),
    ({"pixel_values": None, "image_grid_thw": None}, "5 tokens stand for images, got no pixel_values"),
    ({"mm_token_type_ids": np.zeros((2, 10), int)}, "mm_token_type_ids must be 1 where input_ids stand for an image"),
    ({"image_grid_thw": np.array([[1, 2, 4], [1, 2, 2]])}, r"images of \[2, 1\] outputs, 12 patches in all, must fill"),
    ({"image_grid_thw": np.array([[1, 2, 4], [1, 2, 2], [2, 2, 2]])}, "images are read, of one time each, got a video"),
    ({"image_grid_thw": np.array([[1, 2, 4], [1, 4, 1], [1, 2, 4]])}, "patches must be multiples of 2"),
    ({"pixel_values": np.zeros((20, 9), np.float32)}, "patches must be of 8 numbers and as many as squares of 4 make"),
]


@pytest.mark.parametrize(("change", "rule"), REFUSED, ids=[rule[:24] for _, rule in REFUSED])
def test_what_does_not_fit_is_refused(pretrained, flat, change, rule):
    with pytest.raises(ValueError, match=rule):
        pretrained(**{**flat, **change})


def test_images_in_rows_must_fit_too(pretrained, given):
    with pytest.raises(ValueError, match=r"rows must have as many tokens for images as these have outputs, \[1, 2\]"):
        pretrained(**{**given, "image_grid_thw": given["image_grid_thw"] * np.array([[[0], [1]], [[1], [1]]])})
    with pytest.raises(ValueError, match=r"image_grid_thw must be \[B, I, 3\] of B=2 rows, got \[2, 2, 2\]"):
        jax.eval_shape(lambda x: pretrained(**{**given, **x}), {"image_grid_thw": given["image_grid_thw"][..., :2]})


def test_videos_and_prompts_that_end_in_an_image_are_refused(pretrained, flat):
    ids = flat["input_ids"].copy()
    ids[0, 5] = 37
    with pytest.raises(ValueError, match="images are read and no videos, got the token 37, which stands for one"):
        pretrained(input_ids=ids)
    with pytest.raises(ValueError, match="inside a transform images are given in rows, pixel_values"):
        jax.jit(lambda given: pretrained(**given).logits)(flat)
    cut = {name: value[:, :8] for name, value in flat.items() if value.shape == ids.shape}
    with pytest.raises(ValueError, match="a prompt must end with a token of a text, got one that ends within an image"):
        pretrained.generate(**{**flat, **cut}, max_new_tokens=2)
    gpt2 = hub.load(GOLDEN.parent / "gpt2")
    with pytest.raises(ValueError, match="got image_grid_thw"):
        gpt2.generate(np.array([[5, 6]]), image_grid_thw=np.array([[1, 2, 2]]))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (
            {"rope_scaling": {"type": "mrope", "mrope_section": [2, 2]}},
            "must give mrope_section as three whole",
        ),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [2, 2, 2]}}, r"add up to H/2=4"),
        ({"vision_config": {"embed_dim": 18, "num_heads": 3}}, "heads of images have a multiple of 4 channels each"),
        ({"vision_config": {"rope_parameters": {"rope_type": "yarn"}}}, "must give images axial rotary positions"),
        ({"text_config": 3}, "must give text_config as an object, it is 3"),
    ],
)
def test_configs_that_say_something_else_are_refused(given, change, rule):
    known = hub.load(GOLDEN).config
    text = known["text_config"] | {name: value for name, value in change.items() if name == "rope_scaling"}
    vision = known["vision_config"] | change.get("vision_config", {})
    config = {"text_config": change.get("text_config", text), "vision_config": vision}
    with pytest.raises(ValueError, match=rule):
        hub.load(GOLDEN, lenient=Lenient(config=config))(**given)
