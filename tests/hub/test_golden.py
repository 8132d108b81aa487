"""Every family against what transformers said when `make_golden.py` ran: outputs, every layer, generated tokens."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from flax_transformer import hub
from tests.shares import only

GOLDEN = sorted((Path(__file__).parent / "golden").iterdir())


@pytest.fixture(params=GOLDEN, ids=lambda folder: folder.name, scope="module")
def golden(request):
    return request.param


@pytest.fixture(scope="module")
def expected(golden):
    with np.load(golden / "expected.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def pretrained(golden):
    return hub.load(golden)


@pytest.mark.rotates
@pytest.mark.proves("every family", "parity", "golden checkpoints, without PyTorch")
def test_outputs_and_layers(pretrained, expected):
    given = {name.removeprefix("in_"): value for name, value in expected.items() if name.startswith("in_")}
    got = pretrained(**given, output_hidden_states=True)
    for name, value in expected.items():
        if name.startswith("out_"):
            field, _, layer = name.removeprefix("out_").partition(".")
            found = got[field][int(layer)] if layer else got[field]
            found = np.stack(found) if isinstance(found, tuple) else np.asarray(found)
            assert found.shape == value.shape
            real = real_positions(name, value, given)
            assert np.abs(found - value)[real].max() <= 1e-5 * np.abs(value[real]).max(), name


def real_positions(name, value, given):
    """Say where an output is no padding: the mask's positions, on the side that it is of."""
    if "attention_mask" not in given:
        return np.ones(value.shape, bool)
    mask = given["attention_mask"] != 0
    if "decoder_input_ids" in given and "encoder" not in name:
        return np.ones(value.shape, bool)
    for axis in range(value.ndim - 1):
        if value.shape[axis : axis + 2] == mask.shape:
            return np.broadcast_to(mask.reshape((1,) * axis + mask.shape + (1,) * (value.ndim - axis - 2)), value.shape)
    return np.ones(value.shape, bool)


@pytest.mark.rotates
@pytest.mark.parametrize("how", only(["greedy", "beams"], "beams"))
def test_generated_tokens(pretrained, expected, how):
    given = {name.removeprefix("from_"): value for name, value in expected.items() if name.startswith("from_")}
    if not given:
        names = ("input_ids", "input_features", "pixel_values")
        given = next(({name: expected[f"in_{name}"]} for name in names if f"in_{name}" in expected), {})
        if "in_attention_mask" in expected and "pixel_values" not in given:
            given["attention_mask"] = expected["in_attention_mask"]
    if not given:
        pytest.skip("it reads no text, no recording and no images")
    if how not in expected:
        with pytest.raises(ValueError, match="generates no text"):
            pretrained.generate(**given)
        return
    options = {"num_beams": 4, "length_penalty": 0.7} if how == "beams" else {}
    found = pretrained.generate(**given, max_new_tokens=12, **options)
    np.testing.assert_array_equal(np.asarray(found), expected[how])


@pytest.mark.rotates
@pytest.mark.proves("every family", "weights", "both ways")
def test_saving_gives_the_same_file(pretrained, golden, tmp_path):
    hub.save(pretrained, tmp_path)
    before, after = (load_file(*folder.glob("*.safetensors")) for folder in (golden, tmp_path))
    assert sorted(before) == sorted(after)
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])
