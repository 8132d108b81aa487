"""Folders of timm against timm: outputs, tensors and config.json back, what timm makes of what is written, images."""

import json

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from flax_transformer import hub
from tests.hub import timm_checkpoint

pytestmark = pytest.mark.parity


@pytest.fixture(scope="module")
def timm():
    pytest.importorskip("torch")
    try:
        return timm_checkpoint.timm()
    except ImportError:
        pytest.skip("timm is not installed")


@pytest.mark.proves("timm_vit", "parity", "logits, features, tensors and images against timm")
@pytest.mark.proves("timm_convnext", "parity", "logits, features, tensors and images against timm")
@pytest.mark.parametrize("case", timm_checkpoint.CASES)
def test_a_folder_of_timm_comes_in_and_goes_out(timm, tmp_path, case):
    import torch

    model, images = timm_checkpoint.write(case, tmp_path / "theirs")
    wanted = timm_checkpoint.outputs(model, images)
    pretrained = hub.load(tmp_path / "theirs")
    got = pretrained(pixel_values=images)
    for name, value in wanted.items():
        assert np.abs(np.asarray(got[name]) - value).max() <= 1e-5 * np.abs(value).max(), name
    hub.save(pretrained, tmp_path / "ours")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    theirs, ours = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("theirs", "ours"))
    assert theirs == ours
    again = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True).eval()
    with torch.no_grad():
        np.testing.assert_array_equal(again(torch.as_tensor(images)).numpy(), next(iter(wanted.values())))


@pytest.mark.parametrize("case", ["vit", "clip", "convnext"])
def test_images_are_prepared_as_timm_does(timm, tmp_path, case):
    timm_checkpoint.write(case, tmp_path)
    model = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    config = timm.data.resolve_data_config(model.pretrained_cfg)
    transform, processor = timm.data.create_transform(**config), hub.load(tmp_path).processor
    draw = np.random.default_rng(0)
    for shape in ((40, 57), (300, 220), (31, 31)):
        image = Image.fromarray(draw.integers(0, 256, (*shape, 3), dtype=np.uint8))
        wanted, got = transform(image).numpy(), processor(image)["pixel_values"][0]
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, atol=1e-5)
